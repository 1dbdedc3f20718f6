"""Features that a broker does not have are answered as by a Kafka that does not use them (W-28)."""

from __future__ import annotations

from replication.apis.absent import ANSWERS
from replication.common.error_codes import ErrorCode
from replication.protocol import SERVED, ApiKey
from replication.protocol import messages as wire
from tests.support.wire_client import WireClient

Update = wire.UpdateFeaturesRequest
Users = wire.DescribeUserScramCredentialsRequest


def test_every_row_is_advertised(client: WireClient) -> None:
    keys = client.ask(ApiKey.API_VERSIONS, 0, wire.ApiVersionsRequest()).api_keys
    advertised = {each.api_key: (each.min_version, each.max_version) for each in keys}
    assert {key: advertised.get(key) for key in ANSWERS} == {
        key: tuple(SERVED[key]) for key in ANSWERS
    }


def test_acls(client: WireClient) -> None:
    """MirrorMaker and consoles know this code, and go on without."""
    for version in SERVED[ApiKey.DESCRIBE_ACLS].each():
        found = client.ask(ApiKey.DESCRIBE_ACLS, version, wire.DescribeAclsRequest())
        assert (found.error_code, found.resources) == (ErrorCode.SECURITY_DISABLED, ())
    creation = wire.CreateAclsRequest.AclCreation(2, "t", 3, "User:a", "*", 2, 3)
    made = client.ask(ApiKey.CREATE_ACLS, 3, wire.CreateAclsRequest((creation, creation)))
    assert [each.error_code for each in made.results] == [ErrorCode.SECURITY_DISABLED] * 2
    some = wire.DeleteAclsRequest.DeleteAclsFilter()
    gone = client.ask(ApiKey.DELETE_ACLS, 3, wire.DeleteAclsRequest((some,)))
    assert [each.error_code for each in gone.filter_results] == [ErrorCode.SECURITY_DISABLED]


def test_quotas_are_none(client: WireClient) -> None:
    component = wire.DescribeClientQuotasRequest.ComponentData("user", 0, "someone")
    request = wire.DescribeClientQuotasRequest((component,), True)
    found = client.ask(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, request)
    assert (found.error_code, found.entries) == (ErrorCode.NONE, ())


def test_credentials_are_not_described(client: WireClient) -> None:
    for users, codes in ((None, []), ((), []), (("a", "b"), [91, 91]), (("a", "a"), [92])):
        named = None if users is None else tuple(map(Users.UserName, users))
        found = client.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, Users(named))
        assert found.error_code == ErrorCode.NONE
        assert [each.error_code for each in found.results] == codes


def test_levels_of_features_stay(client: WireClient) -> None:
    def update(version: int, *levels: tuple[str, int]) -> wire.UpdateFeaturesResponse:
        updates = tuple(Update.FeatureUpdateKey(*each) for each in levels)
        found: wire.UpdateFeaturesResponse = client.ask(
            ApiKey.UPDATE_FEATURES, version, Update(feature_updates=updates)
        )
        return found

    assert [each.error_code for each in update(1, ("transaction.version", 2)).results] == [0]
    for version in SERVED[ApiKey.UPDATE_FEATURES].each():
        for levels in ([("transaction.version", 1)], [("transaction.version", 2), ("no", 1)]):
            assert update(version, *levels).error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_resources_that_have_a_configuration(client: WireClient) -> None:
    def listed(version: int, *types: int) -> wire.ListConfigResourcesResponse:
        request = wire.ListConfigResourcesRequest(types)
        found: wire.ListConfigResourcesResponse = client.ask(
            ApiKey.LIST_CONFIG_RESOURCES, version, request
        )
        return found

    assert listed(0).config_resources == ()
    everything = {each.resource_type for each in listed(1).config_resources}
    assert everything >= {4, 8}
    assert {tuple(each) for each in listed(1, 4, 4).config_resources} == {
        (str(broker), 4) for broker in range(3)
    }
    assert listed(1, 2, 99).error_code == ErrorCode.UNSUPPORTED_VERSION
