"""What is doubtful about the measured requests of a question, said as warnings beside the answer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from specsim.planner.question import Question

__all__ = ["say_doubts"]


def say_doubts(questions: Iterable[Question]) -> None:
    """A line on standard error for each doubt, once."""
    for doubt in dict.fromkeys(doubt for question in questions for doubt in question.doubts):
        click.echo(f"warning: {doubt}", err=True)
