//! The encodings of what posse reads and writes: JSON, YAML, protobuf, quantities. The embedded cluster and the client
//! of a cluster read the same bytes, and know nothing of each other, so this room is below both.

pub mod amounts;
pub mod dropped_fields;
pub mod fields;
pub mod json;
pub mod protobuf;
pub mod protobuf_stream;
pub mod quantity;
pub mod strict_json;
pub mod yaml;
