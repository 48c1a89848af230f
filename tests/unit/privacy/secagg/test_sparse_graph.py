"""The sparse graph itself: neighbours, windows, and the bounds that its thresholds stand on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from privacy.errors import PeerError, Reason
from privacy.secagg.graph import STANDARD, Graph, GraphRule, most_colluders
from privacy.secagg.rules import thresholds
from tests.support import secagg_naive as naive

SEED = bytes(range(32))


def ring_of(n, degree):
    return Graph.circulant(n, degree, SEED)


@pytest.mark.parametrize(("n", "degree"), [(9, 4), (20, 8), (201, 128), (161, 160)])
def test_everybody_has_k_neighbours_and_they_agree(n, degree):
    graph = ring_of(n, degree)
    assert sorted(graph.ring) == list(range(1, n + 1))
    for i in range(1, n + 1):
        around = graph.neighbours(i)
        assert len(around) == degree
        assert around == tuple(sorted(around))
        assert i not in around
        assert sorted((*around, i)) == list(graph.holders(i))
        for j in range(1, n + 1):
            assert (
                (j in around) == (j != i and graph.are_neighbours(i, j)) == graph_edge(graph, i, j)
            )
            assert (j in around) == (i in graph.neighbours(j))
        assert [graph.rank(i, j) for j in graph.holders(i)] == list(range(degree + 1))


def graph_edge(graph, i, j):
    steps = abs(graph.ring.index(i) - graph.ring.index(j))
    return 0 < min(steps, len(graph.ring) - steps) <= graph.degree // 2


def test_the_ring_is_that_of_the_naive_implementation():
    assert list(ring_of(40, 8).ring) == naive.ring(40, SEED)
    assert ring_of(40, 8).neighbours(7) == tuple(naive.ring_neighbours(7, 40, 8, SEED))


def test_the_ring_depends_on_every_bit_of_its_seed():
    other = Graph.circulant(40, 8, SEED[:-1] + bytes([SEED[-1] ^ 1]))
    assert other.ring != ring_of(40, 8).ring


def test_the_complete_graph():
    graph = Graph.complete(4)
    assert graph.is_complete
    assert graph.neighbours(2) == (1, 3, 4)
    assert graph.holders(2) == (1, 2, 3, 4)
    assert Graph((3, 1, 4, 2), 3).holders(2) == (1, 2, 3, 4), "ascending, whatever the ring"
    assert graph.least_covered([1, 4], [2, 3]) == 2


@settings(max_examples=60, deadline=None)
@given(st.integers(9, 40), st.sampled_from([2, 4, 8]), st.data())
def test_counts_are_those_of_counting(n, degree, data):
    graph = ring_of(n, degree)
    present = data.draw(st.sets(st.integers(1, n), min_size=1))
    owners = data.draw(st.sets(st.integers(1, n), min_size=1))
    expected = min(len(present.intersection(graph.holders(j))) for j in owners)
    assert graph.least_covered(owners, present) == expected
    twice = graph.ring * 2
    windows = [present.intersection(twice[at : at + degree // 2]) for at in range(n)]
    assert graph.least_in_window(present) == min(map(len, windows))


@settings(max_examples=60, deadline=None)
@given(st.integers(12, 60), st.sampled_from([4, 6, 8]), st.data())
def test_where_each_window_holds_an_honest_survivor_they_are_one_piece(n, degree, data):
    graph = ring_of(n, degree)
    survivors = data.draw(st.sets(st.integers(1, n), min_size=n // 2))
    colluders = data.draw(st.sets(st.integers(1, n), max_size=n // 4))
    honest = survivors - colluders
    if not honest or graph.least_in_window(honest) < 1:
        return
    reached, todo = set(), [min(honest)]
    while todo:
        site = todo.pop()
        if site not in reached:
            reached.add(site)
            todo += honest.intersection(graph.neighbours(site))
    assert reached == honest


@pytest.mark.parametrize("n", [201, 300, 1000])
@pytest.mark.parametrize("drawn", [64, 80, 128])
@pytest.mark.parametrize("share", [0.005, 0.05, 0.2])
def test_the_bound_on_colluders_is_the_exact_hypergeometric_tail(n, drawn, share):
    c = max(1, int(share * n))
    bound = most_colluders(n, c, drawn, n)
    allowed = 2.0**-40 / n
    assert hypergeom.sf(bound, n, c, drawn) <= allowed * (1 + 1e-9)
    if bound:
        assert hypergeom.sf(bound - 1, n, c, drawn) > allowed * (1 - 1e-9)


def test_the_bound_holds_where_scipy_counts_one_window():
    assert most_colluders(1000, 200, 64, 1) == 37
    assert most_colluders(1000, 200, 64, 1000) == 41
    assert most_colluders(1000, 1, 64, 1000) == 1
    assert most_colluders(50, 50, 20, 1) == 20


@pytest.mark.parametrize(
    ("n", "c", "dropout", "expected"),
    [
        (201, 1, 20, (128, 77, 2, 135)),
        (1000, 5, 20, (128, 77, 6, 667)),
        (1000, 50, 20, (128, 88, 23, 667)),
        (1000, 200, 20, (128, 107, 42, 667)),
        (1000, 200, 21, (160, 129, 48, 667)),
    ],
)
def test_thresholds_of_sparse_cohorts(n, c, dropout, expected):
    limits = thresholds(n, c, c + 3, dropout)
    assert (limits.degree, limits.shares, limits.window, limits.quorum) == expected
    assert limits.held_floor == limits.shares
    assert limits.floor == limits.quorum
    near = most_colluders(n - 1, c, limits.degree, n)
    assert near < limits.shares, "colluding holders alone never find a second secret"
    assert 2 * limits.shares > limits.degree + 1 + near, "no U2 of its own without a signer in it"
    assert limits.shares > limits.degree // 2 + limits.window, "no secret across a silent window"


def test_the_complete_graph_ends_at_200():
    assert thresholds(200, 1, 4).degree == 199
    assert thresholds(201, 1, 4).degree == 128


@pytest.mark.parametrize(
    ("n", "c", "rule", "clause"),
    [
        (1000, 201, STANDARD, "c <= 20 %"),
        (204, 41, STANDARD, "c <= 20 %"),
        (100, 1, GraphRule(complete_up_to=50), "no sparse graph"),
        (50, 9, GraphRule(complete_up_to=20, degree=16, shares=10), "may fill"),
    ],
)
def test_what_the_sparse_graph_does_not_carry_is_refused(n, c, rule, clause):
    with pytest.raises(PeerError, match=clause) as caught:
        thresholds(n, c, c + 3, rule=rule)
    assert caught.value.reason is Reason.POLICY


def test_honest_drop_outs_of_a_tenth_seldom_stop_a_round():
    # n = 1000 with c = 100: windows want 31 of 64, neighbourhoods 96 of 129.
    rng, limits = np.random.default_rng(7), thresholds(1000, 100, 103)
    graph = ring_of(1000, 128)
    for _ in range(200):
        present = (rng.permutation(1000)[:900] + 1).tolist()
        assert graph.least_in_window(present) >= limits.window
        assert graph.least_covered(range(1, 1001), present) >= limits.shares
