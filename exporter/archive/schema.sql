-- Amazon Athena: replace BUCKET, PREFIX and the range of dates. Partitions are projected: nothing has to be added as days go by.
CREATE EXTERNAL TABLE efa_pulse_results (
  `schema` string,
  run_id string,
  probe string,
  target string,
  nodes array<string>,
  instance_ids array<string>,
  instance_types array<string>,
  `mode` string,
  started double,
  finished double,
  outcome string,
  reason string,
  message string,
  transport string,
  figure string,
  value double,
  unit string,
  labels map<string,string>,
  proofs array<struct<name:string,holds:boolean,says:string>>,
  results array<string>,
  logs map<string,string>
)
PARTITIONED BY (cluster string, `date` string)
ROW FORMAT SERDE 'org.openx.data.jsonserde.JsonSerDe'
WITH SERDEPROPERTIES ('ignore.malformed.json' = 'true')
STORED AS TEXTFILE
LOCATION 's3://BUCKET/PREFIX/results/v1/'
TBLPROPERTIES (
  'projection.enabled' = 'true',
  'projection.cluster.type' = 'injected',
  'projection.date.type' = 'date',
  'projection.date.format' = 'yyyy-MM-dd',
  'projection.date.range' = '2026-01-01,NOW',
  'storage.location.template' = 's3://BUCKET/PREFIX/results/v1/cluster=${cluster}/date=${date}/'
);
