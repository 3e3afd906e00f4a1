"""How much of the suite's tensor work runs inside graphs: at least 85%, with and without the long loops. One case in three
is counted; `report.py` counts all."""

import pytest

from language import report

LOWEST_SHARE = 0.85
_ONE_IN = 3


@pytest.mark.slow
def test_share_of_operators_in_graphs():
    features = [report.counted(path, _ONE_IN) for path in report.files()]
    print("\n" + report.table(features))
    short = [feature for feature in features if feature.name != "break_loops"]  # else sixty iterations would decide
    assert report.share(features) >= LOWEST_SHARE
    assert report.share(short) >= LOWEST_SHARE
