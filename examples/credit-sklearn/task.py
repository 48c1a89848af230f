"""Score credit risk with scikit-learn's own logistic regression, trained over five banks.

Scaling uses only what the columns mean: a statistic of the data would leave a bank uncharged.
"""

from sklearn.linear_model import LogisticRegression

from tidegate.sklearn_task import Scale, linear_task

_LATE = Scale(low=0.0, high=12.0, log=True, width=0.5)

TASK = linear_task(
    LogisticRegression(C=1.0),
    label="default",
    columns={
        "utilisation": Scale(low=0.0, high=1.5, centre=0.4, width=0.4),
        "age": Scale(low=20.0, high=100.0, centre=50.0, width=15.0),
        "late_30_59": _LATE,
        "debt_ratio": Scale(low=0.0, high=10_000.0, log=True, centre=1.0, width=2.0),
        "income": Scale(low=0.0, high=100_000.0, log=True, centre=8.5, width=1.0),
        "open_lines": Scale(low=0.0, high=40.0, log=True, centre=2.0, width=0.7),
        "late_90": _LATE,
        "property_loans": Scale(low=0.0, high=10.0, log=True, centre=0.7, width=0.5),
        "late_60_89": _LATE,
        "dependents": Scale(low=0.0, high=8.0, log=True, centre=0.4, width=0.5),
    },
    records=120_000,
)
model, loss, metrics = TASK.model, TASK.loss, TASK.metrics
