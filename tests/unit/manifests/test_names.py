import re

from hypothesis import given
from hypothesis import strategies as st

from eagle3_api.jobs import StageName
from eagle3_operator.manifests import names
from unit.samples import draft

# What the schema allows: at most 40 characters, not ending in -r<digits>.
OBJECT_NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True).filter(
    lambda name: not re.search(r"-r[0-9]+$", name)
)
KEYS = st.text("0123456789abcdef", min_size=16, max_size=16)
# A pod's name adds five characters and a dash to its Job's, and is cut rather than refused above 63.
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


@given(name=OBJECT_NAMES, key=KEYS, stage=st.sampled_from(StageName), number=st.integers(0, 99_999))
def test_every_name_is_a_dns_label(name: str, key: str, stage: StageName, number: int) -> None:
    obj = draft(name=name, storage={"features": {"size": "1Ti"}, "drafts": {"size": "1Gi"}})
    made = [
        names.job_name(name, stage, key),
        names.job_name(name, stage, key) + "-abcde",
        names.revision_name(name, number),
        names.claim_name(obj, "features"),
        names.claim_name(obj, "drafts"),
    ]
    assert [bad for bad in made if not DNS_LABEL.fullmatch(bad)] == []


@given(name=OBJECT_NAMES, other=OBJECT_NAMES, number=st.integers(0, 99))
def test_no_revision_is_named_like_another_object(name: str, other: str, number: int) -> None:
    assert names.revision_name(name, number) != other


def test_labels_say_whose_it_is_and_which_part() -> None:
    assert names.labels("kimi", stage=StageName.PROBE, revision=3) == {
        "app.kubernetes.io/managed-by": "eagle3-operator",
        "eagle3.dev/name": "kimi",
        "eagle3.dev/stage": "probe",
        "eagle3.dev/revision": "r3",
    }


def test_a_claim_of_the_user_keeps_its_name() -> None:
    assert (
        names.claim_name(draft(storage={"features": {"claim": "nvme"}, "drafts": {"size": "1Gi"}}), "features")
        == "nvme"
    )
