"""Tables that costs of a profile were fitted to beside its calibration."""

from simcoll.config.yaml_tree import Model


class BesideTable(Model):
    """A measured table to which some costs were fitted beside the fit that a record tells, e.g. for several profiles
    together: rows whose column `table` matches one of the patterns `tables`, of one collective or of all."""

    file: str
    sha256: str
    tables: tuple[str, ...]
    collective: str | None = None
    costs: tuple[str, ...]
    """The costs, as `--free` of simcoll calibrate names them."""
