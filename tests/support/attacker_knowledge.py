"""What an aggregator can open with everything that it holds: its friends' keys and all it was sent.

It works with the naive second implementation (`secagg_naive.py`), so that no fault of ours helps
our own verdict. From the masked vectors it takes off every mask whose key it can compute; then it
sums the rest over every set of honest sites, for pairwise masks cancel within a set. A set whose
sum comes out exactly has been opened.
"""

from itertools import combinations

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from scipy.stats import chi2

from tests.support import secagg_naive as naive

SHARE_BYTES = 33
FALSE_ALARM = 1e-9
"""How often uniform values fail `looks_uniform`: sites draw fresh keys, no test can seed them."""


class Knowledge:
    """The attacker's view of one `hostile_attempt.Attempt`."""

    def __init__(self, attempt, friends):
        """Take the attempt and the indices of the colluding members."""
        self.attempt, self.friends = attempt, tuple(friends)
        self.self_shares, self.mask_shares = {}, {}
        self._read_friends_mail()
        for holder, answer in attempt.answers.items():
            for share in answer.self_shares:
                self._note(self.self_shares, share.owner, holder, share.value)
            for share in answer.mask_shares:
                self._note(self.mask_shares, share.owner, holder, share.value)

    @staticmethod
    def _note(pool, owner, holder, value):
        pool.setdefault(owner, {})[holder] = value

    def _read_friends_mail(self):
        """Open all that was dealt to a friend: the attacker holds its transport key."""
        attempt = self.attempt
        for friend in self.friends:
            c_seed, _ = naive.bundle_seeds(attempt.peers[friend].secrets.bundle.seed)
            for owner, dealt in attempt.dealt.items():
                if owner == friend or dealt.ctx != attempt.ctx:
                    continue
                rh = self._rh(owner)
                secret = naive.agree(c_seed, "scalar-c", self._bundle(owner, owner).c_pk)
                nonce = owner.to_bytes(4, "big") + friend.to_bytes(4, "big") + bytes(4)
                aad = naive.encode(rh, owner, friend)
                pair = AESGCM(naive.hkdf(secret, "share-key", rh)).decrypt(
                    nonce, dealt.ciphertexts[friend - 1], aad
                )
                self._note(self.self_shares, owner, friend, pair[:SHARE_BYTES])
                self._note(self.mask_shares, owner, friend, pair[SHARE_BYTES:])

    def _roster(self, index):
        return self.attempt.told[index]

    def _bundle(self, told, index):
        return self._roster(told).bundles[index - 1].bundle

    def _rh(self, index):
        roster = self._roster(index)
        return naive.roster_hash(roster.context, roster.bundles)

    def _mh(self, index):
        return naive.plan_hash(self._roster(index).plan)

    def _secret(self, pool, index, own):
        """Give a secret that is a friend's, or that enough shares make; else None."""
        if index in self.friends:
            return own(self.attempt.peers[index].secrets)
        threshold = 2 * len(self.attempt.members) // 3 + 1
        shares = pool.get(index, {})
        if len(shares) < threshold:
            return None
        return naive.interpolate(dict(sorted(shares.items())[:threshold]))

    def self_seed(self, index):
        """Give b of a member, if it can be had."""
        return self._secret(self.self_shares, index, lambda secrets: secrets.self_mask_seed)

    def mask_seed(self, index):
        """Give the seed of m of a member, if it can be had."""
        return self._secret(
            self.mask_shares, index, lambda secrets: naive.bundle_seeds(secrets.bundle.seed)[1]
        )

    def rest(self, index):
        """Take every mask that can be computed off an upload; integers mod 2^B, shape (d,)."""
        attempt, bits = self.attempt, self.attempt.bits
        values_D = attempt.uploads[index].astype(np.int64)
        length, rh, mh = len(values_D), self._rh(index), self._mh(index)

        def stream(secret, label):
            key = naive.hkdf(secret, label, rh, mh)
            return np.array(naive.stream(key, length, bits), dtype=np.int64)

        own = self.self_seed(index)
        if own is not None:
            values_D -= stream(own, "self")
        for other in attempt.received[index]:
            if other == index:
                continue
            secret = self._pair_secret(index, other)
            if secret is not None:
                values_D -= (1 if index < other else -1) * stream(secret, "pair")
        return np.mod(values_D, 1 << bits)

    def _pair_secret(self, index, other):
        for knows, peer in ((index, other), (other, index)):
            seed = self.mask_seed(knows)
            if seed is not None:
                return naive.agree(seed, "scalar-m", self._bundle(index, peer).m_pk)
        return None

    def opened(self):
        """Give every set of honest sites whose exact sum comes out, as a set of frozensets."""
        attempt, modulus = self.attempt, 1 << self.attempt.bits
        honest = [index for index in attempt.uploads if index not in self.friends]
        rest = {index: self.rest(index) for index in honest}
        found = set()
        for size in range(1, len(honest) + 1):
            for chosen in combinations(honest, size):
                sum_D = np.mod(sum(rest[index] for index in chosen), modulus)
                truth_D = np.mod(sum(attempt.x[index] for index in chosen), modulus)
                if np.array_equal(sum_D, truth_D):
                    found.add(frozenset(chosen))
        return found


def looks_uniform(values_D, bits):
    """Tell whether ring values pass chi-square tests on their highest and lowest four bits."""
    worst = chi2.isf(FALSE_ALARM / 2, 15)
    for shift in (0, bits - 4):
        counts = np.bincount((values_D.astype(np.int64) >> shift) & 15, minlength=16)
        expected = len(values_D) / 16
        if ((counts - expected) ** 2 / expected).sum() > worst:
            return False
    return True


def is_noise(values_D, x_D, bits):
    """Tell whether what was opened says nothing about x: it and its distance to x look uniform."""
    distance_D = np.mod(values_D.astype(np.int64) - x_D, 1 << bits)
    return looks_uniform(values_D, bits) and looks_uniform(distance_D, bits)


def opens_nothing(attempt, friend):
    """Show that no set of honest sites is opened, and that the victim's rest is noise."""
    knowledge = Knowledge(attempt, [friend])
    assert knowledge.opened() == set()
    victim = attempt.victim
    assert is_noise(knowledge.rest(victim), attempt.x[victim], attempt.bits)
    return knowledge
