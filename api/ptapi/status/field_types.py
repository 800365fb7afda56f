"""Bounded texts of which the status consists; the CRD says no more of them."""

from typing import Annotated

from pydantic import Field

Quantity = Annotated[str, Field(max_length=64)]
Short = Annotated[str, Field(max_length=1024)]
Long = Annotated[str, Field(max_length=32768)]
Time = Annotated[str, Field(max_length=64)]
