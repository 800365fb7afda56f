"""Rows of data in one shape, whatever their file format and column names.

The columns decide the row format (`FORMATS`); the user may name the format, or the columns, instead. Every error names
file, line, column and what is accepted. Tokens come later: `sft_examples`.
"""

from pttrainer.data.rows.columns import FORMATS, USUAL
from pttrainer.data.rows.load import load, of_job, skipped
from pttrainer.data.rows.row import Row, Rows

__all__ = ["FORMATS", "USUAL", "Row", "Rows", "load", "of_job", "skipped"]
