"""What all bodies have in common: unknown fields are refused, and null stands for a field that is left out."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Fields(BaseModel):
    """A JSON object of known fields."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        return {name: value for name, value in values.items() if value is not None} if _is_object(values) else values


def _is_object(values: Any) -> bool:
    return isinstance(values, dict)
