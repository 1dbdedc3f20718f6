"""The messages of Kafka's protocol, version by version: one entry an API, read on first use.

The first line of an entry is the key, Kafka's name, the versions there are and the first flexible
one. ``>`` begins the fields of the request, ``<`` those of the response::

    [#tag] name type[?[versions that may be null]] [versions that have it] [=default] [!]

A version is ``7``, ``2-9`` or ``7+``; without one a field is in all versions of what holds it.
Types: ``bool i8 i16 i32 i64 f64 str bytes records uuid``, ``[type]`` for an array,
``Name {fields}`` for a structure, and ``Name`` alone for one that stands further up. A
default is given where it is not zero, empty or false. Tags from 100 on are our own, between our
brokers; a real one skips them. ``!`` marks a field that may not be lost: a
message in which it is set cannot be written in a version without it. All other fields are left out
there. Tags from 100 on are our own, between our brokers: a real one skips them (X-73).

``RECORDS`` has messages that are no APIs: keys and values of the coordinators' topics, what members
of consumer groups say to each other, who a forwarded request is from, and what the controllers of
KRaft write.

Names are those of Kafka's own schema files in snake_case; docs/protocol.md says how to add to it.
"""

TABLE = """
0 Produce 3-13 flexible 9+
> transactional_id str? =null, acks i16, timeout_ms i32,
  topic_data [TopicProduceData {name str 3-12, topic_id uuid 13+,
  partition_data [PartitionProduceData {index i32, records records?}]}]
< responses [TopicProduceResponse {name str 3-12, topic_id uuid 13+,
  partition_responses [PartitionProduceResponse {index i32, error_code i16, base_offset i64,
  log_append_time_ms i64 =-1, log_start_offset i64 5+ =-1,
  record_errors [BatchIndexAndErrorMessage {batch_index i32,
  batch_index_error_message str? =null}] 8+, error_message str? 8+ =null,
  #0 current_leader LeaderIdAndEpoch {leader_id i32 =-1, leader_epoch i32 =-1} 10+ !}]}],
  throttle_time_ms i32, #0 node_endpoints [NodeEndpoint {node_id i32, host str, port i32,
  rack str? =null}] 10+ !

1 Fetch 4-18 flexible 12+
> #0 cluster_id str? 12+ =null, replica_id i32 4-14 =-1 !,
  #1 replica_state ReplicaState {replica_id i32 =-1, replica_epoch i64 =-1} 15+ !,
  max_wait_ms i32, min_bytes i32, max_bytes i32 =2147483647, isolation_level i8,
  session_id i32 7+, session_epoch i32 7+ =-1, topics [FetchTopic {topic str 4-12,
  topic_id uuid 13+, partitions [FetchPartition {partition i32, current_leader_epoch i32 9+ =-1,
  fetch_offset i64, last_fetched_epoch i32 12+ =-1 !, log_start_offset i64 5+ =-1,
  partition_max_bytes i32, #0 replica_directory_id uuid 17+,
  #1 high_watermark i64 18+ =9223372036854775807}]}],
  forgotten_topics_data [ForgottenTopic {topic str 7-12, topic_id uuid 13+,
  partitions [i32]}] 7+ !, rack_id str 11+
< throttle_time_ms i32, error_code i16 7+, session_id i32 7+ !,
  responses [FetchableTopicResponse {topic str 4-12, topic_id uuid 13+,
  partitions [PartitionData {partition_index i32, error_code i16, high_watermark i64,
  last_stable_offset i64 =-1, log_start_offset i64 5+ =-1,
  #0 diverging_epoch EpochEndOffset {epoch i32 =-1, end_offset i64 =-1} 12+ !,
  #1 current_leader LeaderIdAndEpoch {leader_id i32 =-1, leader_epoch i32 =-1} 12+ !,
  #2 snapshot_id SnapshotId {end_offset i64 =-1, epoch i32 =-1} 12+ !,
  aborted_transactions [AbortedTransaction {producer_id i64, first_offset i64}]?,
  preferred_read_replica i32 11+ =-1 !, records records?}]}],
  #0 node_endpoints [NodeEndpoint {node_id i32, host str, port i32, rack str? =null}] 16+ !

2 ListOffsets 1-11 flexible 6+
> replica_id i32, isolation_level i8 2+ !, topics [ListOffsetsTopic {name str,
  partitions [ListOffsetsPartition {partition_index i32, current_leader_epoch i32 4+ =-1,
  timestamp i64}]}], timeout_ms i32 10+
< throttle_time_ms i32 2+, topics [ListOffsetsTopicResponse {name str,
  partitions [ListOffsetsPartitionResponse {partition_index i32, error_code i16,
  timestamp i64 =-1, offset i64 =-1, leader_epoch i32 4+ =-1 !}]}]

3 Metadata 0-13 flexible 9+
> topics [MetadataRequestTopic {topic_id uuid 10+, name str?10+}]?1+,
  allow_auto_topic_creation bool 4+ =true !, include_cluster_authorized_operations bool 8-10 !,
  include_topic_authorized_operations bool 8+ !
< throttle_time_ms i32 3+, brokers [MetadataResponseBroker {node_id i32, host str, port i32,
  rack str? 1+ =null}], cluster_id str? 2+ =null, controller_id i32 1+ =-1,
  topics [MetadataResponseTopic {error_code i16, name str?12+, topic_id uuid 10+,
  is_internal bool 1+, partitions [MetadataResponsePartition {error_code i16,
  partition_index i32, leader_id i32, leader_epoch i32 7+ =-1, replica_nodes [i32],
  isr_nodes [i32], offline_replicas [i32] 5+}],
  topic_authorized_operations i32 8+ =-2147483648 !}],
  cluster_authorized_operations i32 8-10 =-2147483648 !, error_code i16 13+

4 LeaderAndIsr 7 flexible 7+
> controller_id i32, is_kraft_controller bool, controller_epoch i32, broker_epoch i64 =-1,
  type i8, topic_states [LeaderAndIsrTopicState {topic_name str, topic_id uuid,
  partition_states [LeaderAndIsrPartitionState {partition_index i32, controller_epoch i32,
  leader i32, leader_epoch i32, isr [i32], partition_epoch i32, replicas [i32],
  adding_replicas [i32], removing_replicas [i32], is_new bool, leader_recovery_state i8,
  #100 elr [i32], #101 last_known_leader i32 =-1}], #100 configs [Config {key str, value str}],
  #101 partition_count i32}],
  live_leaders [LeaderAndIsrLiveLeader {broker_id i32, host_name str, port i32,
  #100 broker_epoch i64 =-1, #101 endpoints [Endpoint {port i32, host str, listener str,
  security_protocol i16}], #102 rack str? =null}], #100 sequence i64, #101 full bool,
  #102 topics [Topic {topic_name str, topic_id uuid,
  partitions [Partition {partition_index i32, replicas [i32]}]}], #103 deleted_topic_ids [uuid]
< error_code i16, topics [LeaderAndIsrTopicError {topic_id uuid,
  partition_errors [LeaderAndIsrPartitionError {partition_index i32, error_code i16,
  #100 log_epoch i32 =-1}]}]

5 StopReplica 4 flexible 4+
> controller_id i32, is_kraft_controller bool, controller_epoch i32, broker_epoch i64 =-1,
  topic_states [StopReplicaTopicState {topic_name str,
  partition_states [StopReplicaPartitionState {partition_index i32, leader_epoch i32 =-1,
  delete_partition bool}], #100 topic_id uuid}], #100 sequence i64
< error_code i16, partition_errors [StopReplicaPartitionError {topic_name str,
  partition_index i32, error_code i16}]

6 UpdateMetadata 8 flexible 8+
> controller_id i32, is_kraft_controller bool, #0 type i8, controller_epoch i32,
  broker_epoch i64 =-1, topic_states [UpdateMetadataTopicState {topic_name str, topic_id uuid,
  partition_states [UpdateMetadataPartitionState {partition_index i32, controller_epoch i32,
  leader i32, leader_epoch i32, isr [i32], zk_version i32, replicas [i32],
  offline_replicas [i32], #100 elr [i32], #101 last_known_leader i32 =-1}],
  #100 configs [Config {key str, value str}], #101 partition_count i32}],
  live_brokers [UpdateMetadataBroker {id i32,
  endpoints [UpdateMetadataEndpoint {port i32, host str, listener str, security_protocol i16}],
  rack str?, #100 broker_epoch i64 =-1}], #100 sequence i64, #101 full bool,
  #102 shutting_down [i32]
< error_code i16

7 ControlledShutdown 3 flexible 3+
> broker_id i32, broker_epoch i64 =-1
< error_code i16, remaining_partitions [RemainingPartition {topic_name str,
  partition_index i32}]

8 OffsetCommit 2-10 flexible 8+
> group_id str, generation_id_or_member_epoch i32 =-1, member_id str,
  group_instance_id str? 7+ =null !, retention_time_ms i64 2-4 =-1,
  topics [OffsetCommitRequestTopic {name str 2-9, topic_id uuid 10+,
  partitions [OffsetCommitRequestPartition {partition_index i32, committed_offset i64,
  committed_leader_epoch i32 6+ =-1, committed_metadata str?}]}]
< throttle_time_ms i32 3+, topics [OffsetCommitResponseTopic {name str 2-9, topic_id uuid 10+,
  partitions [OffsetCommitResponsePartition {partition_index i32, error_code i16}]}]

9 OffsetFetch 1-10 flexible 6+
> group_id str 1-7 !, topics [OffsetFetchRequestTopic {name str,
  partition_indexes [i32]}]?2+ 1-7 !, groups [OffsetFetchRequestGroup {group_id str,
  member_id str? 9+ =null, member_epoch i32 9+ =-1,
  topics [OffsetFetchRequestTopics {name str 8-9, topic_id uuid 10+,
  partition_indexes [i32]}]?}] 8+ !, require_stable bool 7+ !
< throttle_time_ms i32 3+, topics [OffsetFetchResponseTopic {name str,
  partitions [OffsetFetchResponsePartition {partition_index i32, committed_offset i64,
  committed_leader_epoch i32 5+ =-1, metadata str?, error_code i16}]}] 1-7 !,
  error_code i16 2-7, groups [OffsetFetchResponseGroup {group_id str,
  topics [OffsetFetchResponseTopics {name str 8-9, topic_id uuid 10+,
  partitions [OffsetFetchResponsePartitions {partition_index i32, committed_offset i64,
  committed_leader_epoch i32 =-1, metadata str?, error_code i16}]}], error_code i16}] 8+ !

10 FindCoordinator 0-6 flexible 3+
> key str 0-3 !, key_type i8 1+ !, coordinator_keys [str] 4+ !
< throttle_time_ms i32 1+, error_code i16 0-3 !, error_message str? 1-3, node_id i32 0-3 !,
  host str 0-3 !, port i32 0-3 !, coordinators [Coordinator {key str, node_id i32, host str,
  port i32, error_code i16, error_message str?}] 4+ !

11 JoinGroup 0-9 flexible 6+
> group_id str, session_timeout_ms i32, rebalance_timeout_ms i32 1+ =-1, member_id str,
  group_instance_id str? 5+ =null !, protocol_type str,
  protocols [JoinGroupRequestProtocol {name str, metadata bytes}], reason str? 8+ =null
< throttle_time_ms i32 2+, error_code i16, generation_id i32 =-1, protocol_type str? 7+ =null,
  protocol_name str?7+, leader str, skip_assignment bool 9+ !, member_id str,
  members [JoinGroupResponseMember {member_id str, group_instance_id str? 5+ =null,
  metadata bytes}]

12 Heartbeat 0-4 flexible 4+
> group_id str, generation_id i32, member_id str, group_instance_id str? 3+ =null !
< throttle_time_ms i32 1+, error_code i16

13 LeaveGroup 0-5 flexible 4+
> group_id str, member_id str 0-2 !, members [MemberIdentity {member_id str,
  group_instance_id str? =null, reason str? 5+ =null}] 3+ !
< throttle_time_ms i32 1+, error_code i16, members [MemberResponse {member_id str,
  group_instance_id str?, error_code i16}] 3+ !

14 SyncGroup 0-5 flexible 4+
> group_id str, generation_id i32, member_id str, group_instance_id str? 3+ =null !,
  protocol_type str? 5+ =null, protocol_name str? 5+ =null,
  assignments [SyncGroupRequestAssignment {member_id str, assignment bytes}]
< throttle_time_ms i32 1+, error_code i16, protocol_type str? 5+ =null,
  protocol_name str? 5+ =null, assignment bytes

15 DescribeGroups 0-6 flexible 5+
> groups [str], include_authorized_operations bool 3+ !
< throttle_time_ms i32 1+, groups [DescribedGroup {error_code i16,
  error_message str? 6+ =null !, group_id str, group_state str, protocol_type str,
  protocol_data str, members [DescribedGroupMember {member_id str,
  group_instance_id str? 4+ =null, client_id str, client_host str, member_metadata bytes,
  member_assignment bytes}], authorized_operations i32 3+ =-2147483648 !}]

16 ListGroups 0-5 flexible 3+
> states_filter [str] 4+ !, types_filter [str] 5+ !
< throttle_time_ms i32 1+, error_code i16, groups [ListedGroup {group_id str, protocol_type str,
  group_state str 4+, group_type str 5+}]

17 SaslHandshake 0-1
> mechanism str
< error_code i16, mechanisms [str]

18 ApiVersions 0-4 flexible 3+
> client_software_name str 3+, client_software_version str 3+
< error_code i16, api_keys [ApiVersion {api_key i16, min_version i16, max_version i16}],
  throttle_time_ms i32 1+, #0 supported_features [SupportedFeatureKey {name str,
  min_version i16, max_version i16}] 3+, #1 finalized_features_epoch i64 3+ =-1,
  #2 finalized_features [FinalizedFeatureKey {name str, max_version_level i16,
  min_version_level i16}] 3+, #3 zk_migration_ready bool 3+

19 CreateTopics 2-7 flexible 5+
> topics [CreatableTopic {name str, num_partitions i32, replication_factor i16,
  assignments [CreatableReplicaAssignment {partition_index i32, broker_ids [i32]}],
  configs [CreatableTopicConfig {name str, value str?}]}], timeout_ms i32 =60000,
  validate_only bool, #100 forwarded bool 5+
< throttle_time_ms i32, topics [CreatableTopicResult {name str, topic_id uuid 7+,
  error_code i16, error_message str?, #0 topic_config_error_code i16 5+,
  num_partitions i32 5+ =-1, replication_factor i16 5+ =-1,
  configs [CreatableTopicConfigs {name str, value str?, read_only bool, config_source i8 =-1,
  is_sensitive bool}]? 5+}]

20 DeleteTopics 1-6 flexible 4+
> topics [DeleteTopicState {name str? =null, topic_id uuid}] 6+ !, topic_names [str] 1-5,
  timeout_ms i32, #100 forwarded bool 4+
< throttle_time_ms i32, responses [DeletableTopicResult {name str?6+, topic_id uuid 6+,
  error_code i16, error_message str? 5+ =null}]

21 DeleteRecords 0-2 flexible 2+
> topics [DeleteRecordsTopic {name str, partitions [DeleteRecordsPartition {partition_index i32,
  offset i64}]}], timeout_ms i32
< throttle_time_ms i32, topics [DeleteRecordsTopicResult {name str,
  partitions [DeleteRecordsPartitionResult {partition_index i32, low_watermark i64,
  error_code i16}]}]

22 InitProducerId 0-6 flexible 2+
> transactional_id str?, transaction_timeout_ms i32, producer_id i64 3+ =-1 !,
  producer_epoch i16 3+ =-1 !, enable_2pc bool 6+ !, keep_prepared_txn bool 6+ !
< throttle_time_ms i32, error_code i16, producer_id i64 =-1, producer_epoch i16,
  ongoing_txn_producer_id i64 6+ =-1 !, ongoing_txn_producer_epoch i16 6+ =-1 !

23 OffsetForLeaderEpoch 2-4 flexible 4+
> replica_id i32 3+ =-2, topics [OffsetForLeaderTopic {topic str,
  partitions [OffsetForLeaderPartition {partition i32, current_leader_epoch i32 =-1,
  leader_epoch i32}]}]
< throttle_time_ms i32, topics [OffsetForLeaderTopicResult {topic str,
  partitions [EpochEndOffset {error_code i16, partition i32, leader_epoch i32 =-1,
  end_offset i64 =-1}]}]

24 AddPartitionsToTxn 0-5 flexible 3+
> transactions [AddPartitionsToTxnTransaction {transactional_id str, producer_id i64,
  producer_epoch i16, verify_only bool, topics [AddPartitionsToTxnTopic {name str,
  partitions [i32]}]}] 4+ !, v3_and_below_transactional_id str 0-3 !,
  v3_and_below_producer_id i64 0-3 !, v3_and_below_producer_epoch i16 0-3 !,
  v3_and_below_topics [AddPartitionsToTxnTopic] 0-3 !
< throttle_time_ms i32, error_code i16 4+,
  results_by_transaction [AddPartitionsToTxnResult {transactional_id str,
  topic_results [AddPartitionsToTxnTopicResult {name str,
  results_by_partition [AddPartitionsToTxnPartitionResult {partition_index i32,
  partition_error_code i16}]}]}] 4+ !,
  results_by_topic_v3_and_below [AddPartitionsToTxnTopicResult] 0-3 !

25 AddOffsetsToTxn 0-4 flexible 3+
> transactional_id str, producer_id i64, producer_epoch i16, group_id str
< throttle_time_ms i32, error_code i16

26 EndTxn 0-5 flexible 3+
> transactional_id str, producer_id i64, producer_epoch i16, committed bool
< throttle_time_ms i32, error_code i16, producer_id i64 5+ =-1, producer_epoch i16 5+ =-1

27 WriteTxnMarkers 1-2 flexible 1+
> markers [WritableTxnMarker {producer_id i64, producer_epoch i16, transaction_result bool,
  topics [WritableTxnMarkerTopic {name str, partition_indexes [i32]}], coordinator_epoch i32,
  transaction_version i8 2+}]
< markers [WritableTxnMarkerResult {producer_id i64,
  topics [WritableTxnMarkerTopicResult {name str,
  partitions [WritableTxnMarkerPartitionResult {partition_index i32, error_code i16}]}]}]

28 TxnOffsetCommit 0-5 flexible 3+
> transactional_id str, group_id str, producer_id i64, producer_epoch i16,
  generation_id i32 3+ =-1 !, member_id str 3+ !, group_instance_id str? 3+ =null !,
  topics [TxnOffsetCommitRequestTopic {name str,
  partitions [TxnOffsetCommitRequestPartition {partition_index i32, committed_offset i64,
  committed_leader_epoch i32 2+ =-1, committed_metadata str?}]}]
< throttle_time_ms i32, topics [TxnOffsetCommitResponseTopic {name str,
  partitions [TxnOffsetCommitResponsePartition {partition_index i32, error_code i16}]}]

29 DescribeAcls 1-3 flexible 2+
> resource_type_filter i8, resource_name_filter str?, pattern_type_filter i8 =3,
  principal_filter str?, host_filter str?, operation i8, permission_type i8
< throttle_time_ms i32, error_code i16, error_message str?,
  resources [DescribeAclsResource {resource_type i8, resource_name str, pattern_type i8 =3,
  acls [AclDescription {principal str, host str, operation i8, permission_type i8}]}]

30 CreateAcls 1-3 flexible 2+
> creations [AclCreation {resource_type i8, resource_name str, resource_pattern_type i8 =3,
  principal str, host str, operation i8, permission_type i8}]
< throttle_time_ms i32, results [AclCreationResult {error_code i16, error_message str?}]

31 DeleteAcls 1-3 flexible 2+
> filters [DeleteAclsFilter {resource_type_filter i8, resource_name_filter str?,
  pattern_type_filter i8 =3, principal_filter str?, host_filter str?, operation i8,
  permission_type i8}]
< throttle_time_ms i32, filter_results [DeleteAclsFilterResult {error_code i16,
  error_message str?, matching_acls [DeleteAclsMatchingAcl {error_code i16, error_message str?,
  resource_type i8, resource_name str, pattern_type i8 =3, principal str, host str,
  operation i8, permission_type i8}]}]

32 DescribeConfigs 1-4 flexible 4+
> resources [DescribeConfigsResource {resource_type i8, resource_name str,
  configuration_keys [str]?}], include_synonyms bool, include_documentation bool 3+ !
< throttle_time_ms i32, results [DescribeConfigsResult {error_code i16, error_message str?,
  resource_type i8, resource_name str, configs [DescribeConfigsResourceResult {name str,
  value str?, read_only bool, config_source i8 =-1, is_sensitive bool,
  synonyms [DescribeConfigsSynonym {name str, value str?, source i8}], config_type i8 3+,
  documentation str? 3+}]}]

33 AlterConfigs 0-2 flexible 2+
> resources [AlterConfigsResource {resource_type i8, resource_name str,
  configs [AlterableConfig {name str, value str?}]}], validate_only bool
< throttle_time_ms i32, responses [AlterConfigsResourceResponse {error_code i16,
  error_message str?, resource_type i8, resource_name str}]

34 AlterReplicaLogDirs 1-2 flexible 2+
> dirs [AlterReplicaLogDir {path str, topics [AlterReplicaLogDirTopic {name str,
  partitions [i32]}]}]
< throttle_time_ms i32, results [AlterReplicaLogDirTopicResult {topic_name str,
  partitions [AlterReplicaLogDirPartitionResult {partition_index i32, error_code i16}]}]

35 DescribeLogDirs 1-5 flexible 2+
> topics [DescribableLogDirTopic {topic str, partitions [i32]}]?
< throttle_time_ms i32, error_code i16 3+, results [DescribeLogDirsResult {error_code i16,
  log_dir str, topics [DescribeLogDirsTopic {name str,
  partitions [DescribeLogDirsPartition {partition_index i32, partition_size i64, offset_lag i64,
  is_future_key bool}]}], total_bytes i64 4+ =-1, usable_bytes i64 4+ =-1, is_cordoned bool 5+}]

36 SaslAuthenticate 0-2 flexible 2+
> auth_bytes bytes
< error_code i16, error_message str?, auth_bytes bytes, session_lifetime_ms i64 1+

37 CreatePartitions 0-3 flexible 2+
> topics [CreatePartitionsTopic {name str, count i32,
  assignments [CreatePartitionsAssignment {broker_ids [i32]}]?}], timeout_ms i32,
  validate_only bool, #100 forwarded bool 2+
< throttle_time_ms i32, results [CreatePartitionsTopicResult {name str, error_code i16,
  error_message str? =null}]

42 DeleteGroups 0-2 flexible 2+
> groups_names [str]
< throttle_time_ms i32, results [DeletableGroupResult {group_id str, error_code i16}]

43 ElectLeaders 0-2 flexible 2+
> election_type i8 1+ !, topic_partitions [TopicPartitions {topic str, partitions [i32]}]?,
  timeout_ms i32 =60000, #100 forwarded bool 2+
< throttle_time_ms i32, error_code i16 1+ !,
  replica_election_results [ReplicaElectionResult {topic str,
  partition_result [PartitionResult {partition_id i32, error_code i16, error_message str?}]}]

44 IncrementalAlterConfigs 0-1 flexible 1+
> resources [AlterConfigsResource {resource_type i8, resource_name str,
  configs [AlterableConfig {name str, config_operation i8, value str?}]}], validate_only bool,
  #100 forwarded bool 1+
< throttle_time_ms i32, responses [AlterConfigsResourceResponse {error_code i16,
  error_message str?, resource_type i8, resource_name str}]

45 AlterPartitionReassignments 0-1 flexible 0+
> timeout_ms i32 =60000, allow_replication_factor_change bool 1+ =true !,
  topics [ReassignableTopic {name str, partitions [ReassignablePartition {partition_index i32,
  replicas [i32]? =null}]}], #100 forwarded bool
< throttle_time_ms i32, allow_replication_factor_change bool 1+ =true, error_code i16,
  error_message str?, responses [ReassignableTopicResponse {name str,
  partitions [ReassignablePartitionResponse {partition_index i32, error_code i16,
  error_message str?}]}]

46 ListPartitionReassignments 0 flexible 0+
> timeout_ms i32 =60000, topics [ListPartitionReassignmentsTopics {name str,
  partition_indexes [i32]}]? =null, #100 forwarded bool
< throttle_time_ms i32, error_code i16, error_message str?,
  topics [OngoingTopicReassignment {name str,
  partitions [OngoingPartitionReassignment {partition_index i32, replicas [i32],
  adding_replicas [i32], removing_replicas [i32]}]}]

47 OffsetDelete 0
> group_id str, topics [OffsetDeleteRequestTopic {name str,
  partitions [OffsetDeleteRequestPartition {partition_index i32}]}]
< error_code i16, throttle_time_ms i32, topics [OffsetDeleteResponseTopic {name str,
  partitions [OffsetDeleteResponsePartition {partition_index i32, error_code i16}]}]

48 DescribeClientQuotas 0-1 flexible 1
> components [ComponentData {entity_type str, match_type i8, match str?}], strict bool
< throttle_time_ms i32, error_code i16, error_message str?,
  entries [EntryData {entity [EntityData {entity_type str, entity_name str?}],
  values [ValueData {key str, value f64}]}]?

50 DescribeUserScramCredentials 0 flexible 0+
> users [UserName {name str}]?
< throttle_time_ms i32, error_code i16, error_message str?,
  results [DescribeUserScramCredentialsResult {user str, error_code i16, error_message str?,
  credential_infos [CredentialInfo {mechanism i8, iterations i32}]}]

56 AlterPartition 2-3 flexible 2+
> broker_id i32, broker_epoch i64 =-1, topics [TopicData {topic_id uuid,
  partitions [PartitionData {partition_index i32, leader_epoch i32, new_isr [i32] 2 !,
  new_isr_with_epochs [BrokerState {broker_id i32, broker_epoch i64 =-1}] 3+ !,
  leader_recovery_state i8, partition_epoch i32}]}]
< throttle_time_ms i32, error_code i16, topics [TopicData {topic_id uuid,
  partitions [PartitionData {partition_index i32, error_code i16, leader_id i32,
  leader_epoch i32, isr [i32], leader_recovery_state i8, partition_epoch i32,
  #100 min_isr i32}]}]

57 UpdateFeatures 0-2 flexible 0+
> timeout_ms i32 =60000, feature_updates [FeatureUpdateKey {feature str, max_version_level i16,
  allow_downgrade bool 0 !, upgrade_type i8 1+ =1 !}], validate_only bool 1+ !
< throttle_time_ms i32, error_code i16, error_message str?,
  results [UpdatableFeatureResult {feature str, error_code i16, error_message str?}] 0-1

58 Envelope 0 flexible 0+
> request_data bytes, request_principal bytes?, client_host_address bytes
< response_data bytes? =null, error_code i16

60 DescribeCluster 0-2 flexible 0+
> include_cluster_authorized_operations bool, endpoint_type i8 1+ =1 !,
  include_fenced_brokers bool 2+ !
< throttle_time_ms i32, error_code i16, error_message str? =null, endpoint_type i8 1+ =1 !,
  cluster_id str, controller_id i32 =-1, brokers [DescribeClusterBroker {broker_id i32,
  host str, port i32, rack str? =null, is_fenced bool 2+ !}],
  cluster_authorized_operations i32 =-2147483648

61 DescribeProducers 0 flexible 0+
> topics [TopicRequest {name str, partition_indexes [i32]}]
< throttle_time_ms i32, topics [TopicResponse {name str,
  partitions [PartitionResponse {partition_index i32, error_code i16, error_message str? =null,
  active_producers [ProducerState {producer_id i64, producer_epoch i32, last_sequence i32 =-1,
  last_timestamp i64 =-1, coordinator_epoch i32, current_txn_start_offset i64 =-1}]}]}]

65 DescribeTransactions 0 flexible 0+
> transactional_ids [str]
< throttle_time_ms i32, transaction_states [TransactionState {error_code i16,
  transactional_id str, transaction_state str, transaction_timeout_ms i32,
  transaction_start_time_ms i64, producer_id i64, producer_epoch i16,
  topics [TopicData {topic str, partitions [i32]}]}]

66 ListTransactions 0-2 flexible 0+
> state_filters [str], producer_id_filters [i64], duration_filter i64 1+ =-1 !,
  transactional_id_pattern str? 2+ =null !
< throttle_time_ms i32, error_code i16, unknown_state_filters [str],
  transaction_states [TransactionState {transactional_id str, producer_id i64,
  transaction_state str}]

67 AllocateProducerIds 0 flexible 0+
> broker_id i32, broker_epoch i64 =-1
< throttle_time_ms i32, error_code i16, producer_id_start i64, producer_id_len i32

68 ConsumerGroupHeartbeat 0-1 flexible 0+
> group_id str, member_id str, member_epoch i32, instance_id str? =null, rack_id str? =null,
  rebalance_timeout_ms i32 =-1, subscribed_topic_names [str]? =null,
  subscribed_topic_regex str? 1+ =null !, server_assignor str? =null,
  topic_partitions [TopicPartitions {topic_id uuid, partitions [i32]}]? =null
< throttle_time_ms i32, error_code i16, error_message str? =null, member_id str? =null,
  member_epoch i32, heartbeat_interval_ms i32,
  assignment Assignment {topic_partitions [TopicPartitions {topic_id uuid,
  partitions [i32]}]}? =null

69 ConsumerGroupDescribe 0-1 flexible 0+
> group_ids [str], include_authorized_operations bool
< throttle_time_ms i32, groups [DescribedGroup {error_code i16, error_message str? =null,
  group_id str, group_state str, group_epoch i32, assignment_epoch i32, assignor_name str,
  members [Member {member_id str, instance_id str? =null, rack_id str? =null, member_epoch i32,
  client_id str, client_host str, subscribed_topic_names [str],
  subscribed_topic_regex str? =null,
  assignment Assignment {topic_partitions [TopicPartitions {topic_id uuid, topic_name str,
  partitions [i32]}]}, target_assignment Assignment, member_type i8 1+ =-1}],
  authorized_operations i32 =-2147483648}]

74 ListConfigResources 0-1 flexible 0+
> resource_types [i8] 1 !
< throttle_time_ms i32, error_code i16,
  config_resources [ConfigResource {resource_name str, resource_type i8 1 =16}]

75 DescribeTopicPartitions 0 flexible 0+
> topics [TopicRequest {name str}], response_partition_limit i32 =2000,
  cursor Cursor {topic_name str, partition_index i32}? =null
< throttle_time_ms i32, topics [DescribeTopicPartitionsResponseTopic {error_code i16, name str?,
  topic_id uuid, is_internal bool,
  partitions [DescribeTopicPartitionsResponsePartition {error_code i16, partition_index i32,
  leader_id i32, leader_epoch i32 =-1, replica_nodes [i32], isr_nodes [i32],
  eligible_leader_replicas [i32]? =null, last_known_elr [i32]? =null, offline_replicas [i32]}],
  topic_authorized_operations i32 =-2147483648}], next_cursor Cursor {topic_name str,
  partition_index i32}? =null
"""

RECORDS = """
OffsetCommitKey 0
  group str, topic str, partition i32

OffsetCommitValue 0-4 flexible 4+
  offset i64, leader_epoch i32 3+ =-1, metadata str, commit_timestamp i64,
  expire_timestamp i64 1 =-1, #0 topic_id uuid 4+

GroupMetadataKey 0
  group str

GroupMetadataValue 0-4 flexible 4+
  protocol_type str, generation i32, protocol str?, leader str?,
  current_state_timestamp i64 2+ =-1, members [MemberMetadata {member_id str,
  group_instance_id str? 3+ =null, client_id str, client_host str, rebalance_timeout i32 1+ =-1,
  session_timeout i32, subscription bytes, assignment bytes}]

TransactionLogKey 0
  transactional_id str

TransactionLogValue 0-1 flexible 1+
  producer_id i64, #0 previous_producer_id i64 1+ =-1 !, #1 next_producer_id i64 1+ =-1 !,
  producer_epoch i16, #3 next_producer_epoch i16 1+ =-1 !, transaction_timeout_ms i32,
  transaction_status i8, transaction_partitions [PartitionsSchema {topic str,
  partition_ids [i32]}]?, transaction_last_update_timestamp_ms i64,
  transaction_start_timestamp_ms i64, #2 client_transaction_version i16 1+ !

ConsumerProtocolSubscription 0-3
  topics [str], user_data bytes? =null, owned_partitions [TopicPartition {topic str,
  partitions [i32]}] 1+, generation_id i32 2+ =-1, rack_id str? 3+ =null

ConsumerProtocolAssignment 0-3
  assigned_partitions [TopicPartition {topic str, partitions [i32]}], user_data bytes? =null

DefaultPrincipalData 0 flexible 0+
  type str, name str, token_authenticated bool

TopicRecord 0 flexible 0+
  name str, topic_id uuid

PartitionRecord 0-2 flexible 0+
  partition_id i32 =-1, topic_id uuid, replicas [i32], isr [i32], removing_replicas [i32],
  adding_replicas [i32], leader i32 =-1, #0 leader_recovery_state i8, leader_epoch i32 =-1,
  partition_epoch i32 =-1, directories [uuid] 1+ !,
  #1 eligible_leader_replicas [i32]? 2+ =null !, #2 last_known_elr [i32]? 2+ =null !

ConfigRecord 0 flexible 0+
  resource_type i8, resource_name str, name str, value str?

PartitionChangeRecord 0-2 flexible 0+
  partition_id i32 =-1, topic_id uuid, #0 isr [i32]? =null, #1 leader i32 =-2,
  #2 replicas [i32]? =null, #3 removing_replicas [i32]? =null, #4 adding_replicas [i32]? =null,
  #5 leader_recovery_state i8 =-1, #8 directories [uuid]? 1+ =null !,
  #6 eligible_leader_replicas [i32]? 2+ =null !, #7 last_known_elr [i32]? 2+ =null !

RemoveTopicRecord 0 flexible 0+
  topic_id uuid

ProducerIdsRecord 0 flexible 0+
  broker_id i32, broker_epoch i64 =-1, next_producer_id i64

ClearElrRecord 0 flexible 0+
  topic_name str

FeatureLevelRecord 0 flexible 0+
  name str, feature_level i16
"""
