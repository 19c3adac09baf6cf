"""The contract of the flights.

Belongs here: what a flight must look like, and nothing else. How it is read and kept is in defs.yaml beside this file.
"""

from datetime import datetime

import pandera.pandas as pa


class Flight(pa.DataFrameModel):
    """A flight that left, or should have left, New York City. Clock times are local, as hhmm; 2400 is midnight."""

    year: int = pa.Field(isin=[2013], description="Local year of the scheduled departure.")
    month: int = pa.Field(ge=1, le=12, description="Local month of the scheduled departure.")
    day: int = pa.Field(ge=1, le=31, description="Local day of the scheduled departure.")
    dep_time: int = pa.Field(nullable=True, ge=1, le=2400, description="When it left; null when it was cancelled.")
    sched_dep_time: int = pa.Field(ge=1, le=2400, description="When it should have left.")
    dep_delay: int = pa.Field(nullable=True, description="Minutes; below zero it left early.")
    arr_time: int = pa.Field(nullable=True, ge=1, le=2400, description="When it arrived, where that is known.")
    sched_arr_time: int = pa.Field(ge=1, le=2400, description="When it should have arrived.")
    arr_delay: int = pa.Field(nullable=True, description="Minutes, where known; below zero it arrived early.")
    carrier: str = pa.Field(description="Two-letter code of the airline.")
    flight: int = pa.Field(gt=0, description="Flight number.")
    tailnum: str = pa.Field(nullable=True, description="Tail number of the plane, where one is known.")
    origin: str = pa.Field(isin=["EWR", "JFK", "LGA"], description="Airport that it left.")
    dest: str = pa.Field(description="Airport that it flew to.")
    air_time: int = pa.Field(nullable=True, gt=0, description="Minutes in the air, where known.")
    distance: int = pa.Field(gt=0, description="Miles between the two airports.")
    hour: int = pa.Field(ge=0, le=23, description="Local hour of the scheduled departure.")
    minute: int = pa.Field(ge=0, le=59, description="Minute of the scheduled departure.")
    time_hour: datetime = pa.Field(description="Hour of the scheduled departure, UTC.")
