"""What is learnt: losses, metrics and predictions of each kind of target. One file each."""

from commonground.tasks.answer_tokens import AnswerTokens
from commonground.tasks.balance import about_balance
from commonground.tasks.base import Task, make_task, tasks
from commonground.tasks.classification import CLASSIFICATION, Classification
from commonground.tasks.fine import FineFigures, OwnMetric
from commonground.tasks.headline import Headline, Metric
from commonground.tasks.multilabel import MultiLabel
from commonground.tasks.objective import Objective, OwnLoss, class_weights
from commonground.tasks.rank import Rank
from commonground.tasks.regression import Regression
from commonground.tasks.target import Target
from commonground.tasks.tested import special_clients, tested_clients, untrained_clients, untuned_clients

__all__ = [
    "CLASSIFICATION",
    "AnswerTokens",
    "Classification",
    "FineFigures",
    "Headline",
    "Metric",
    "MultiLabel",
    "Objective",
    "OwnLoss",
    "OwnMetric",
    "Rank",
    "Regression",
    "Target",
    "Task",
    "about_balance",
    "class_weights",
    "make_task",
    "special_clients",
    "tasks",
    "tested_clients",
    "untrained_clients",
    "untuned_clients",
]
