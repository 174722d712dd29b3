//! Texts in objects.

/// The longest prefix of `text` with at most `bytes_max` bytes.
pub(crate) fn clipped(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
