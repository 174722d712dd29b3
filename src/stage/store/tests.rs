//! Tests of the store on a real folder.

use std::io::Cursor;

use super::*;
use crate::stage::tests::{Folder, label, sha256};

const QUOTAS: Quotas = Quotas { bundle_bytes_max: 1_000, namespace_bytes_max: 2_500 };

fn open(folder: &Folder) -> Store {
    Store::open(folder.path(), QUOTAS).unwrap()
}

fn store_bundle(store: &Store, label: Label, bytes: &[u8]) -> Result<String, StoreError> {
    store.reserve(label)?.store(&mut Cursor::new(bytes))
}

/// The file names in the folder, without the lock.
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
fn a_complete_bundle_is_found_by_its_secret_also_after_a_restart() {
    let folder = Folder::new();
    let store = open(&folder);
    let id = store_bundle(&store, label("ns", b"hello", "s3cret"), b"hello").unwrap();
    let empty = store_bundle(&store, label("ns", b"", "none"), b"").unwrap();
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
            // The hash on the disk is not the secret.
            (&id, &bundle.label.secret_sha256),
        ] {
            assert!(store.find(id, secret).is_none(), "{id} {secret}");
        }
    };
    check(&store);
    let old = SystemTime::now() - Duration::from_secs(3600);
    let path = store.path(&id, COMPLETE);
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
fn an_incomplete_bundle_leaves_nothing() {
    let folder = Folder::new();
    let store = open(&folder);
    let cut = store_bundle(&store, label("ns", b"hello", "s"), b"hell").unwrap_err();
    assert!(matches!(cut, StoreError::Cut(_)), "{cut:?}");
    let other = store_bundle(&store, label("ns", b"hello", "s"), b"hellO").unwrap_err();
    assert!(matches!(other, StoreError::Mismatch), "{other:?}");
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(ErrorKind::ConnectionReset.into())
        }
    }
    let broken = store.reserve(label("ns", b"hello", "s")).unwrap().store(&mut Broken).unwrap_err();
    assert!(matches!(broken, StoreError::Cut(_)), "{broken:?}");
    assert_eq!(names(&folder), [""; 0]);
    assert!(store.bundles().is_empty());
    // Bytes after the announced length are ignored.
    let id = store_bundle(&store, label("ns", b"hello", "s"), b"hello, world").unwrap();
    assert_eq!(read_all(&store, &store.find(&id, "s").unwrap(), 0), b"hello");
}

#[test]
fn a_namespace_has_a_limit_and_gets_freed_space_back() {
    let folder = Folder::new();
    let store = open(&folder);
    let large = vec![b'x'; 1_000];
    let too_large = store.reserve(label("ns", &vec![b'x'; 1_001], "s")).unwrap_err();
    assert!(matches!(too_large, StoreError::TooLarge { max: 1_000 }), "{too_large:?}");
    let ids = [(); 2].map(|()| store_bundle(&store, label("ns", &large, "s"), &large).unwrap());
    let upload = store.reserve(label("ns", &large[..500], "s")).unwrap();
    let reserve = |n: usize| store.reserve(label("ns", &large[..n], "s"));
    assert!(matches!(reserve(1), Err(StoreError::Quota { used: 2_500, max: 2_500 })));
    assert!(store.reserve(label("other", &large, "s")).is_ok(), "each namespace has its own limit");
    drop(upload);
    assert!(reserve(500).is_ok(), "a cancelled upload must free its space");
    // The count is the same after a restart.
    drop(store);
    let store = open(&folder);
    assert!(matches!(store.reserve(label("ns", &large, "s")), Err(StoreError::Quota { .. })));
    store.remove(&store.find(&ids[0], "s").unwrap()).unwrap();
    assert!(store.reserve(label("ns", &large, "s")).is_ok());
}

#[test]
fn a_start_removes_incomplete_bundles_and_keeps_unknown_files() {
    let folder = Folder::new();
    let store = open(&folder);
    let id = store_bundle(&store, label("ns", b"hello", "s"), b"hello").unwrap();
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
fn an_error_names_the_folder_that_cannot_be_used() {
    let folder = Folder::new();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Store::open(&file, QUOTAS).unwrap_err().to_string();
    assert!(error.contains("/file: "), "{error}");
    assert_eq!(sha256(b"").len(), 64);
}
