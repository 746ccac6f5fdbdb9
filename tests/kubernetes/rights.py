"""Rights as values: what roles give, what the API server says an account may do, and roles with one right less."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from testbed import Cluster, wait_for

RBAC = "rbac.authorization.k8s.io/v1"


class Right(NamedTuple):
    """A verb and a resource, with the group that the resource is of."""

    verb: str
    resource: str
    group: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    @property
    def refusal(self) -> str:
        """How the API server names it to one who does not have it."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'


def rights(table: Mapping[str, str]) -> set[Right]:
    """Read `{"nodes": "get list", "rondejobs.ronde.dev/status": "patch"}`."""
    found = set()
    for place, verbs in table.items():
        name, slash, part = place.partition("/")
        resource, _, group = name.partition(".")
        found |= {Right(verb, f"{resource}{slash}{part}", group) for verb in verbs.split()}
    return found


def of_rules(rules: Iterable[Mapping[str, Any]]) -> set[Right]:
    """Return all that the rules of a role give."""
    found: set[Right] = set()
    for rule in rules:
        # A right to a thing of one name, or to a path, is none that is known here.
        assert set(rule) <= {"apiGroups", "resources", "verbs"}, rule
        found |= {
            Right(verb, resource, group)
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
    return found


def roles(objects: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the roles among objects, those of the cluster and those of a namespace."""
    return [one for one in objects if one["kind"] in ("Role", "ClusterRole")]


def without(role: Mapping[str, Any], right: Right) -> dict[str, Any]:
    """Return a role that gives everything but this."""
    less = dict(copy.deepcopy(role))
    less["rules"] = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
        for one in sorted(of_rules(role["rules"]) - {right})
    ]
    return less


def held(cluster: Cluster, account: str, account_namespace: str, namespace: str) -> set[Right]:
    """Ask the API server what a service account may do in a namespace, beyond what everybody may."""

    def review(token: str) -> set[Right]:
        api = replace(cluster.control_plane.api, token=token)
        content = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
        asked = {**content, "spec": {"namespace": namespace}}
        status = api.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", asked)["status"]
        # Kubelets' rights follow from what is on their nodes; nobody else has any of that kind.
        assert status.get("evaluationError", "") in ("", "node authorizer does not support user rule resolution"), (
            status
        )
        return of_rules(status["resourceRules"])

    def token(name: str, place: str) -> str:
        return cluster.kubectl("create", "token", name, f"--namespace={place}").strip()

    return review(token(account, account_namespace)) - review(token("default", "default"))


def await_right(cluster: Cluster, account: str, right: Right, namespace: str, *, allowed: bool) -> None:
    """Wait until the API server has heard of a changed role."""
    resource, _, part = right.resource.partition("/")
    asked = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{account}",
            "resourceAttributes": {
                "verb": right.verb,
                "group": right.group,
                "resource": resource,
                "subresource": part,
                "namespace": namespace,
            },
        },
    }
    api = cluster.control_plane.api
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_for(
        f"{account} to be {'allowed' if allowed else 'forbidden'} to {right}",
        lambda: api.create(path, asked)["status"]["allowed"] == allowed,
        10,
    )
