//! Runs the targets on a stable compiler: mutates inputs with a seeded generator for some seconds.
//!
//! posse-fuzz [--seconds N] [--seed N] [TARGET...]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use posse_base::rng::Rng;
use posse_fuzz::{TARGETS, Target};

/// The longest input, bytes.
const INPUT_BYTES_MAX: usize = 64 << 10;
/// An input that takes longer is a finding.
const INPUT_TIME_MAX: Duration = Duration::from_secs(5);
/// The most mutations of one input.
const MUTATIONS_MAX: u64 = 6;

/// What parsers have special cases for.
const WORDS: [&str; 56] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "'",
    "\\",
    "\n",
    "\r\n",
    "\r",
    "\t",
    " ",
    "\0",
    "\u{1b}",
    "\u{202e}",
    "\u{feff}",
    "&a ",
    "*a",
    "<<: *a",
    "- ",
    "? ",
    "| ",
    "!!str ",
    "---\n",
    "# ",
    "~",
    "null",
    "true",
    "0",
    "-1",
    "1e999",
    "18446744073709551616",
    "0x",
    ".inf",
    "9007199254740993",
    "{{SLOT}}",
    "{{",
    "}}",
    "$(",
    "GET / HTTP/1.1\r\n",
    "Content-Length: ",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: a\r\n",
    "\r\n\r\n",
    "ffffffffffffffff\r\n",
    "0\r\n\r\n",
    "Expect: 100-continue\r\n",
    "%2e",
    "\\u0000",
    "\\ud800",
    "../",
    "https://a:b@c",
    "1Gi",
];

/// The input that runs now, for the report of a panic on any thread.
static CURRENT: Mutex<Vec<u8>> = Mutex::new(Vec::new());

fn main() -> ExitCode {
    let (mut seconds, mut seed, mut names) = (5, 1, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().and_then(|text| text.parse().ok());
        match arg.as_str() {
            "--seconds" => seconds = number().unwrap_or(seconds),
            "--seed" => seed = number().unwrap_or(seed),
            name => names.push(name.to_owned()),
        }
    }
    if let Some(name) = names.iter().find(|name| TARGETS.iter().all(|(known, ..)| known != name)) {
        eprintln!("there is no target {name}");
        return ExitCode::from(2);
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        before(panic);
        report("a panic");
        std::process::exit(1);
    }));
    for target in
        TARGETS.iter().filter(|(name, ..)| names.is_empty() || names.iter().any(|n| n == name))
    {
        run(target, Duration::from_secs(seconds), seed);
    }
    ExitCode::SUCCESS
}

/// Keeps the current input in a file.
fn report(what: &str) {
    let input =
        CURRENT.lock().map_or_else(|broken| broken.into_inner().clone(), |input| input.clone());
    let path = std::env::temp_dir().join(format!("posse-fuzz-finding-{}", std::process::id()));
    let kept = std::fs::write(&path, input);
    eprintln!("{what}; the input is in {} ({kept:?})", path.display());
}

fn run((name, target, folders): &Target, time: Duration, seed: u64) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let corpus = corpus(folders.iter().map(|folder| root.join(folder)));
    assert!(!corpus.is_empty(), "{name} has no first inputs");
    let mut rng = Rng::new(seed);
    let began = Instant::now();
    let mut n_inputs: u64 = 0;
    // First every input as it is, then mutations.
    while began.elapsed() < time {
        let whole = usize::try_from(n_inputs).ok().and_then(|n| corpus.get(n)).cloned();
        let input = whole.unwrap_or_else(|| mutated(&corpus, &mut rng));
        if let Ok(mut current) = CURRENT.lock() {
            current.clone_from(&input);
        }
        let input_began = Instant::now();
        target(&input);
        if input_began.elapsed() > INPUT_TIME_MAX {
            report("a slow input");
            std::process::exit(1);
        }
        n_inputs += 1;
    }
    println!("{name}: {n_inputs} inputs in {} s, seed {seed}", began.elapsed().as_secs());
}

/// All files; lines of JSON are inputs of their own as well.
fn corpus(folders: impl Iterator<Item = PathBuf>) -> Vec<Vec<u8>> {
    let mut files: Vec<PathBuf> = folders
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .collect();
    files.sort();
    let mut inputs = Vec::new();
    for bytes in files.iter().filter_map(|path| std::fs::read(path).ok()) {
        if bytes.len() <= INPUT_BYTES_MAX {
            inputs.push(bytes.clone());
        }
        let lines = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"{") && line.len() > 2);
        inputs.extend(lines.filter(|line| line.len() < bytes.len() - 1).map(<[u8]>::to_vec));
    }
    inputs
}

fn pick(rng: &mut Rng, n: usize) -> usize {
    usize::try_from(rng.below(n.max(1) as u64)).unwrap_or(0)
}

fn mutated(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    let mut input = corpus[pick(rng, corpus.len())].clone();
    for _ in 0..=rng.below(MUTATIONS_MAX) {
        let (from, to) = (pick(rng, input.len() + 1), pick(rng, input.len() + 1));
        let (from, to) = (from.min(to), from.max(to));
        // Most changes are small.
        let near = to.min(from + 1 + pick(rng, 16));
        match rng.below(9) {
            0 if from < input.len() => input[from] ^= 1 << rng.below(8),
            1 if from < input.len() => input[from] = u8::try_from(rng.below(256)).unwrap_or(0),
            2 => drop(input.drain(from..near)),
            3 => drop(input.drain(from..to)),
            4 => {
                let copy = input[from..to].to_vec();
                drop(input.splice(from..from, copy));
            }
            5 => {
                let other = &corpus[pick(rng, corpus.len())];
                let at = pick(rng, other.len() + 1);
                let end = at + pick(rng, other.len() - at + 1);
                drop(input.splice(from..near, other[at..end].iter().copied()));
            }
            6 => {
                let word = WORDS[pick(rng, WORDS.len())];
                let n = 1 + if rng.chance(5) { pick(rng, 300) } else { 0 };
                drop(input.splice(from..from, word.repeat(n).into_bytes()));
            }
            7 => input.truncate(to),
            _ => {
                let word = WORDS[pick(rng, WORDS.len())];
                drop(input.splice(from..near, word.bytes()));
            }
        }
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}
