from eagle3_api.jobs import StageName
from eagle3_operator.traits import TRAITS


def test_of_every_stage_it_is_said_what_it_is_in_their_order() -> None:
    assert list(TRAITS) == list(StageName)
