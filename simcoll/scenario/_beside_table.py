"""Tables that costs of a profile were fitted to beside its calibration."""

from simcoll.config.yaml_tree import Model


class BesideTable(Model):
    """A measured table to which some costs were fitted beside the fit of its record, e.g. for several profiles
    together: rows whose column `table` matches one of the patterns `tables`, of one collective or of all."""

    file: str
    """The name of the table's file."""
    sha256: str
    """Its hash."""
    tables: tuple[str, ...]
    """Patterns of the column `table`."""
    collective: str | None = None
    """The collective of the rows. Default: all."""
    costs: tuple[str, ...]
    """The costs, as `--free` of simcoll calibrate names them."""
