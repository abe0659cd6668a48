"""The container of ``publish.hook``: a command of the user's, in an image of the user's, that is told what was pushed.

``docs/publishing.md`` is the contract. The image need not have a shell: the kubelet puts variables into the command's words.
"""

from pathlib import PurePosixPath

from eagle3_api.artifacts import DRAFTS_ROOT, PREDICATE, STATEMENT
from eagle3_api.jobs import HookConfig, StageName
from eagle3_api.spec import Eagle3Draft, Hook, Placement, seconds
from eagle3_operator.manifests.credentials import LOGIN_FOLDER, bucket_keys, registry_login
from eagle3_operator.manifests.pods import Mount, Program, configuration, root_mount, user_mounts
from eagle3_operator.traits import TRAITS

#: Where it finds what Publish left.
FOLDER = PurePosixPath("/eagle3/published")


def placed(hook: Hook, placement: Placement) -> Placement:
    """The placement of the object's pods, with the hook's own variables and the volumes that it names.

    The image is a third party's: the object's volumes hold data, and its variables tokens of hubs and stores.
    """
    volumes = [volume for volume in placement.volumes or () if volume.name in (hook.volumes or ())]
    return placement.model_copy(update={"env": hook.env or None, "volumes": volumes or None})


def program(obj: Eagle3Draft, config: HookConfig, placement: Placement, *, name: str, grace: int) -> Program:
    """The program.

    Args:
        obj: the object, which says what to run.
        config: what was pushed.
        placement: of the pod.
        name: of the container.
        grace: seconds between SIGTERM and SIGKILL.
    """
    publish = obj.spec.publish
    if publish is None or publish.hook is None:
        raise ValueError("an object without publish.hook runs nothing after a push")
    login = tuple(registry_login(publish))
    told = {
        "EAGLE3_REFERENCE": config.reference,
        "EAGLE3_ADDRESS": config.address,
        "EAGLE3_DIGEST": config.digest,
        "EAGLE3_STATEMENT": str(FOLDER / STATEMENT),
        "EAGLE3_PREDICATE": str(FOLDER / PREDICATE),
        "DOCKER_CONFIG": LOGIN_FOLDER if login else None,
    }
    return Program(
        name=name,
        image=publish.hook.image,
        command=tuple(config.command),
        mounts=(configuration(), _published(obj, config), *login, *user_mounts(placement, read_only=True)),
        grace=grace,
        requests=TRAITS[StageName.HOOK].requests,
        environment={variable: value for variable, value in told.items() if value is not None},
        secrets=bucket_keys(publish.object_store),
        deadline=int(seconds(publish.hook.timeout)),
        # It leaves no report: its last words, if it fails, are those of its log
        container={"terminationMessagePolicy": "FallbackToLogsOnError"},
    )


def _published(obj: Eagle3Draft, config: HookConfig) -> Mount:
    """Publish's artifact alone: drafts and held-out data are no business of a hook's."""
    drafts = root_mount(obj, "drafts", read_only=True)
    inside = PurePosixPath(config.published).relative_to(DRAFTS_ROOT)
    return Mount(drafts.name, str(FOLDER), drafts.source, read_only=True, sub_path=str(inside))
