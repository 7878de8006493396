"""The link of a node's segment, without Ray. Its connections are tested in tests/peers/ray."""

from rollway.errors import WaitTimeout
from rollway.integrations.ray import node_link
from rollway.integrations.ray.node_link import RingLink, Run
from rollway.integrations.ray.registry import Status


def test_a_registry_that_does_not_answer_is_not_taken_for_a_lost_one(monkeypatch, name):
    asked, ended = [], []

    def ask(run, call, *arguments, timeout, **more):
        asked.append(call)
        if len(asked) in (1, 2) or call == "leave":
            raise WaitTimeout("stopped")
        return Status("over", None)

    monkeypatch.setattr(node_link, "ask_registry", ask)
    link = RingLink(Run("run1", "id", ""), name, ended.append, 0)
    link.start()
    link.join(20)
    assert asked == ["forward_to"] * 3 + ["leave"] and ended == [link]
