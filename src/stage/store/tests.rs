//! The store on a real folder: what comes in whole stays, everything else leaves nothing.

use std::io::Cursor;

use super::*;
use crate::stage::tests::{Folder, label, sha256};

const QUOTAS: Quotas = Quotas { bundle_bytes_max: 1_000, namespace_bytes_max: 2_500 };

fn open(folder: &Folder) -> Store {
    Store::open(folder.path(), QUOTAS).unwrap()
}

fn fill(store: &Store, label: Label, bytes: &[u8]) -> Result<String, Refused> {
    store.reserve(label)?.fill(&mut Cursor::new(bytes))
}

/// The names in the folder, but for the lock.
fn names(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

fn read_all(store: &Store, bundle: &Bundle, from: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.read(bundle, from).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_came_whole_is_found_by_its_secret_and_after_a_restart() {
    let folder = Folder::new();
    let store = open(&folder);
    let id = fill(&store, label("ns", b"hello", "s3cret"), b"hello").unwrap();
    let empty = fill(&store, label("ns", b"", "none"), b"").unwrap();
    let check = |store: &Store| {
        let bundle = store.find(&id, "s3cret").expect("the secret opens it");
        assert_eq!(read_all(store, &bundle, 0), b"hello");
        assert_eq!(read_all(store, &bundle, 3), b"lo");
        assert_eq!(read_all(store, &store.find(&empty, "none").unwrap(), 0), b"");
        for (id, secret) in [
            (id.as_str(), "s3cre"),
            (&id, ""),
            (&id, "none"),
            (&empty, "s3cret"),
            ("", "s3cret"),
            (&"0".repeat(32), "s3cret"),
            // What the disk holds opens nothing.
            (&id, &bundle.label.secret_sha256),
        ] {
            assert!(store.find(id, secret).is_none(), "{id} {secret}");
        }
    };
    check(&store);
    let old = SystemTime::now() - Duration::from_secs(3600);
    let path = store.path(&id, WHOLE);
    File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    drop(store);
    let store = open(&folder);
    let bundle = store.bundles().into_iter().find(|bundle| bundle.id == id).unwrap();
    let (unused_ms, was_fetched) = store.use_of(&bundle);
    assert!((3_590_000..3_700_000).contains(&unused_ms) && !was_fetched, "{unused_ms}");
    check(&store);
    let (unused_ms, was_fetched) = store.use_of(&bundle);
    assert!(unused_ms < 60_000 && was_fetched, "a fetch is a use: {unused_ms}");
    store.remove(&bundle).unwrap();
    assert!(store.find(&id, "s3cret").is_none());
    assert_eq!(names(&folder), [format!("{empty}.bundle")]);
}

#[test]
fn what_does_not_come_whole_leaves_nothing() {
    let folder = Folder::new();
    let store = open(&folder);
    let cut = fill(&store, label("ns", b"hello", "s"), b"hell").unwrap_err();
    assert!(matches!(cut, Refused::Cut(_)), "{cut:?}");
    let other = fill(&store, label("ns", b"hello", "s"), b"hellO").unwrap_err();
    assert!(matches!(other, Refused::Mismatch), "{other:?}");
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::ConnectionReset.into())
        }
    }
    let broken = store.reserve(label("ns", b"hello", "s")).unwrap().fill(&mut Broken).unwrap_err();
    assert!(matches!(broken, Refused::Cut(_)), "{broken:?}");
    assert_eq!(names(&folder), [""; 0]);
    assert!(store.bundles().is_empty());
    // What is sent beyond the announced end is nobody's.
    let id = fill(&store, label("ns", b"hello", "s"), b"hello, world").unwrap();
    assert_eq!(read_all(&store, &store.find(&id, "s").unwrap(), 0), b"hello");
}

#[test]
fn a_namespace_has_so_much_room_and_gets_it_back() {
    let folder = Folder::new();
    let store = open(&folder);
    let large = vec![b'x'; 1_000];
    let too_large = store.reserve(label("ns", &vec![b'x'; 1_001], "s")).unwrap_err();
    assert!(matches!(too_large, Refused::TooLarge { max: 1_000 }), "{too_large:?}");
    let ids = [(); 2].map(|()| fill(&store, label("ns", &large, "s"), &large).unwrap());
    let coming = store.reserve(label("ns", &large[..500], "s")).unwrap();
    let full = |n: usize| store.reserve(label("ns", &large[..n], "s"));
    assert!(matches!(full(1), Err(Refused::Quota { used: 2_500, max: 2_500 })));
    assert!(store.reserve(label("other", &large, "s")).is_ok(), "another has its own");
    drop(coming);
    assert!(full(500).is_ok(), "what did not come needs no room");
    // A restart counts the same.
    drop(store);
    let store = open(&folder);
    assert!(matches!(store.reserve(label("ns", &large, "s")), Err(Refused::Quota { .. })));
    store.remove(&store.find(&ids[0], "s").unwrap()).unwrap();
    assert!(store.reserve(label("ns", &large, "s")).is_ok());
}

#[test]
fn a_start_removes_what_is_half_and_nothing_that_it_does_not_understand() {
    let folder = Folder::new();
    let store = open(&folder);
    let id = fill(&store, label("ns", b"hello", "s"), b"hello").unwrap();
    drop(store);
    let half = format!("{}.new", "a".repeat(32));
    let damaged = format!("{}.bundle", "b".repeat(32));
    let short = format!("{}.bundle", "c".repeat(32));
    let line = label("ns", b"hello", "s").to_line();
    for (name, text) in [
        (half.as_str(), "half"),
        (&damaged, "no label\n"),
        (&short, &format!("{line}hell")),
        ("notes.new", "not ours"),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let store = open(&folder);
    assert_eq!(store.bundles().len(), 1);
    let mut want = [format!("{id}.bundle"), damaged, short, "notes.new".to_owned()];
    want.sort();
    assert_eq!(names(&folder), want);
    let second = Store::open(folder.path(), QUOTAS).unwrap_err().to_string();
    assert!(second.ends_with("another server is using it"), "{second}");
}

#[test]
fn a_folder_that_will_not_do_is_named() {
    let folder = Folder::new();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file, QUOTAS).unwrap_err().to_string();
    assert!(error.contains("/file: "), "{error}");
    assert_eq!(sha256(b"").len(), 64);
}
