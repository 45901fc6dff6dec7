"""A message's value as columns: by a JSON schema, an Avro schema or a Protobuf descriptor."""
