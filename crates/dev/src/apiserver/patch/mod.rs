//! Patches: JSON patch and strategic merge patch, on JSON values.

pub(crate) mod json;
pub(crate) mod strategic;
