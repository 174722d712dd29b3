//! The header blocks of SPDY/3: one zlib stream for each direction, with a dictionary that the
//! specification fixes.

use std::io;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_HAS_MORE_INPUT;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

/// The words of the dictionary; each one stands behind its length.
const WORDS: &str = "options|head|post|put|delete|trace|accept|accept-charset|accept-encoding|\
    accept-language|accept-ranges|age|allow|authorization|cache-control|connection|content-base|\
    content-encoding|content-language|content-length|content-location|content-md5|content-range|\
    content-type|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|\
    if-range|if-unmodified-since|last-modified|location|max-forwards|pragma|proxy-authenticate|\
    proxy-authorization|range|referer|retry-after|server|te|trailer|transfer-encoding|upgrade|\
    user-agent|vary|via|warning|www-authenticate|method|get|status|200 OK|version|HTTP/1.1|url|\
    public|set-cookie|keep-alive|origin";

/// The end of the dictionary.
const TAIL: &str = "1001012012022052063003023033043053063074024054064074084094104114124134144154\
    16417502504505203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad \
    Request401 Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not \
    Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 \
    Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,\
    application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,\
    deflate,sdchcharset=utf-8charset=iso-8859-1,utf-,*,enq=0.";

/// What deflate can refer back to.
const WINDOW_BYTES: usize = 32 << 10;
/// The longest block of a client, decompressed.
const BLOCK_BYTES_MAX: usize = 16 << 10;

/// A block without headers: count 0, stored and not compressed, and an empty deflate block, at which
/// Go gives out what it has read. The first one follows `FIRST`.
pub(super) const EMPTY: [u8; 14] = [0, 4, 0, 0xFB, 0xFF, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF];
/// The beginning of a zlib stream without a dictionary.
pub(super) const FIRST: [u8; 2] = [0x78, 0x01];

/// Names and values.
pub(super) type Headers = Vec<(String, String)>;

/// Reads the blocks of one direction, in their order.
pub(super) struct HeaderReader {
    inflate: Box<DecompressorOxide>,
    /// The last output; it wraps around. At the beginning it holds the dictionary.
    window: Vec<u8>,
    position: usize,
    has_begun: bool,
}

impl HeaderReader {
    pub(super) fn new() -> Self {
        let mut window = Vec::with_capacity(WINDOW_BYTES);
        for word in WORDS.split('|') {
            window.extend_from_slice(&u32::try_from(word.len()).unwrap_or_default().to_be_bytes());
            window.extend_from_slice(word.as_bytes());
        }
        window.extend_from_slice(TAIL.as_bytes());
        let position = window.len();
        window.resize(WINDOW_BYTES, 0);
        Self { inflate: Box::default(), window, position, has_begun: false }
    }

    /// The headers of the next block.
    pub(super) fn read(&mut self, block: &[u8]) -> io::Result<Headers> {
        let bytes = self.inflate(block)?;
        headers(&bytes).ok_or_else(|| invalid("a header block is cut"))
    }

    fn inflate(&mut self, block: &[u8]) -> io::Result<Vec<u8>> {
        let mut input = block;
        if !std::mem::replace(&mut self.has_begun, true) {
            // RFC 1950: two bytes; a bit of the second one announces the dictionary's checksum.
            let flags = block.get(1).copied().unwrap_or_default();
            let n_begin = if flags & 0x20 == 0 { 2 } else { 6 };
            input = block.get(n_begin..).unwrap_or_default();
        }
        let mut output = Vec::new();
        loop {
            let (status, n_read, n_written) = decompress(
                &mut self.inflate,
                input,
                &mut self.window,
                self.position,
                TINFL_FLAG_HAS_MORE_INPUT,
            );
            input = input.get(n_read..).unwrap_or_default();
            let end = self.position + n_written;
            output.extend_from_slice(self.window.get(self.position..end).unwrap_or_default());
            self.position = end % WINDOW_BYTES;
            if output.len() > BLOCK_BYTES_MAX {
                return Err(invalid("a header block is too long"));
            }
            let goes_on = status == TINFLStatus::HasMoreOutput
                || status == TINFLStatus::NeedsMoreInput && !input.is_empty() && n_read > 0;
            match goes_on {
                true => {}
                false if status == TINFLStatus::NeedsMoreInput => return Ok(output),
                false => return Err(invalid("a header block cannot be decompressed")),
            }
        }
    }
}

/// Parses a count, and names and values behind their lengths.
fn headers(mut bytes: &[u8]) -> Option<Headers> {
    let count = number(&mut bytes)?;
    let mut text = || {
        let length = usize::try_from(number(&mut bytes)?).ok()?;
        let (text, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    (0..count).map(|_| Some((text()?, text()?))).collect()
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_be_bytes(*number))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of zlib with the specification's dictionary, and a third one of 40,000 bytes.
    const BLOCKS: [&str; 3] = [
        "78f9e3c6a7c202253a703a2b294a4dcc851625aca9a0808614cb45e01c6061606100a4398b20d198094ade8c06\
         00000000ffff",
        "c2aa19540e2512d60b000000ffff",
        "eccb3111000008c4306bc8420c62ff5818d0900cddbaf9ef540300000000000000000000000000000000000000\
         0000000000000000000000000000000000000027000000ffff",
    ];

    fn bytes(block: &str) -> Vec<u8> {
        let hex: Vec<u8> = block.bytes().filter(u8::is_ascii_hexdigit).collect();
        let digits = hex.chunks(2).map(|pair| std::str::from_utf8(pair).expect("ASCII"));
        digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect()
    }

    #[test]
    fn blocks_of_one_stream_are_read_in_their_order() {
        let mut reader = HeaderReader::new();
        for (block, of) in BLOCKS.iter().zip(["error", "data"]) {
            let wanted = [("streamtype", of), ("port", "8080"), ("requestid", "0")];
            let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(reader.read(&bytes(block)).expect("a block"), wanted);
        }
        let error = reader.read(&bytes(BLOCKS[2])).expect_err("it is too long");
        assert_eq!(error.to_string(), "a header block is too long");
    }

    #[test]
    fn garbage_is_an_error() {
        let whole = bytes(BLOCKS[0]);
        for end in 0..whole.len() / 2 {
            HeaderReader::new().read(&whole[..end]).expect_err("it is cut");
        }
        let huge = [[0, 4, 0, 0xFB, 0xFF].as_slice(), &[0xFF; 4]].concat();
        HeaderReader::new().read(&[FIRST.as_slice(), &huge].concat()).expect_err("it is cut");
    }
}
