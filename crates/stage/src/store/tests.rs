//! Tests of the store on a real folder.

use std::io::Cursor;

use super::*;
use crate::tests::{Prompt, label};
use posse_testing::Folder;

const QUOTAS: Quotas =
    Quotas { bundle_bytes_max: 100_000, namespace_bytes_max: 250_000, namespace_bundles_max: 20 };

fn open(folder: &Folder) -> Store {
    Store::open(folder.path(), QUOTAS).unwrap()
}

fn store_bundle(store: &Store, label: Label, bytes: &[u8]) -> Result<String, StoreError> {
    store.begin(label, Arc::new(Prompt))?.store(&mut Cursor::new(bytes))
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
    let incoming = store.begin(label("ns", b"hello", "s"), Arc::new(Prompt)).unwrap();
    let broken = incoming.store(&mut Broken).unwrap_err();
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
    let large = vec![b'x'; 100_000];
    let begin = |store: &Store, namespace: &str, n: usize| {
        store.begin(label(namespace, &large[..n], "s"), Arc::new(Prompt)).map(drop)
    };
    let too_large = store.begin(label("ns", &[b'x'; 100_001], "s"), Arc::new(Prompt)).unwrap_err();
    assert!(matches!(too_large, StoreError::TooLarge { max: 100_000 }), "{too_large:?}");
    let ids = [(); 2].map(|()| store_bundle(&store, label("ns", &large, "s"), &large).unwrap());
    assert!(begin(&store, "ns", 50_000).is_ok());
    let full = begin(&store, "ns", 50_001).unwrap_err();
    assert!(
        matches!(full, StoreError::NoRoom(NoRoom::Bytes { used: 200_000, max: 250_000 })),
        "{full:?}"
    );
    assert!(begin(&store, "other", 100_000).is_ok(), "each namespace has its own limit");
    // The count is the same after a restart.
    drop(store);
    let store = open(&folder);
    assert!(matches!(begin(&store, "ns", 100_000), Err(StoreError::NoRoom(NoRoom::Bytes { .. }))));
    store.remove(&store.find(&ids[0], "s").unwrap()).unwrap();
    assert!(begin(&store, "ns", 100_000).is_ok());
}

#[test]
fn empty_bundles_count_as_4_kib_each_and_their_number_is_limited() {
    let folder = Folder::new();
    let small = Quotas { namespace_bytes_max: 5 * 4096, ..QUOTAS };
    let put = |store: &Store| store_bundle(store, label("ns", b"", "s"), b"");
    let store = Store::open(folder.path(), small).unwrap();
    (0..5).for_each(|_| drop(put(&store).unwrap()));
    let full = put(&store).unwrap_err();
    assert!(
        matches!(full, StoreError::NoRoom(NoRoom::Bytes { used: 20_480, max: 20_480 })),
        "{full:?}"
    );
    drop(store);
    let few = Quotas { namespace_bundles_max: 7, ..QUOTAS };
    let store = Store::open(folder.path(), few).unwrap();
    (0..2).for_each(|_| drop(put(&store).unwrap()));
    let full = put(&store).unwrap_err();
    assert!(matches!(full, StoreError::NoRoom(NoRoom::Bundles { max: 7 })), "{full:?}");
    store_bundle(&store, label("other", b"", "s"), b"").unwrap();
}

/// A client that is this many seconds behind its pace.
#[derive(Debug)]
struct Slow(u64, AtomicBool);

impl Uploader for Slow {
    fn behind(&self) -> Duration {
        Duration::from_secs(self.0)
    }

    fn cut(&self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// A body that stops after its bytes, until its client is cut.
struct Stalling<'a> {
    bytes: Cursor<Vec<u8>>,
    client: Arc<Slow>,
    /// Called once, when the bytes are over.
    then: Option<Box<dyn FnOnce() + 'a>>,
}

impl Read for Stalling<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let n = self.bytes.read(bytes)?;
        if n == 0
            && let Some(then) = self.then.take()
        {
            then();
            assert!(self.client.1.load(Ordering::Relaxed), "it goes on for ever");
        }
        Ok(n)
    }
}

#[test]
fn an_announced_length_reserves_nothing() {
    let folder = Folder::new();
    let store = open(&folder);
    let large = vec![b'x'; 100_000];
    // Ten clients announce 1 MB together, and send nothing.
    let held: Vec<Incoming<'_>> =
        (0..10).map(|_| store.begin(label("ns", &large, "s"), Arc::new(Prompt)).unwrap()).collect();
    store_bundle(&store, label("ns", &large, "s"), &large).unwrap();
    store_bundle(&store, label("ns", &large, "s"), &large).unwrap();
    drop(held);
}

#[test]
fn the_slowest_upload_ends_if_another_one_needs_its_room() {
    let folder = Folder::new();
    let store = open(&folder);
    let large = vec![b'x'; 100_000];
    let stored = store_bundle(&store, label("ns", &large, "s"), &large).unwrap();
    let client = |behind_s| Arc::new(Slow(behind_s, AtomicBool::new(false)));
    let (slow, slower, other) = (client(3), client(5), client(9));
    let begin = |namespace: &str, client: &Arc<Slow>| {
        store.begin(label(namespace, &large, "s"), Arc::<Slow>::clone(client)).unwrap()
    };
    let elsewhere = begin("other", &other);
    let waiting = begin("ns", &slow);
    let half = large[..70_000].to_vec();
    let mut body = Stalling {
        bytes: Cursor::new(half),
        client: Arc::clone(&slower),
        then: Some(Box::new(|| {
            // 100,000 are stored, 65,536 were received: a whole bundle does not fit beside them.
            store_bundle(&store, label("ns", &large, "s"), &large).unwrap();
        })),
    };
    let ended = begin("ns", &slower).store(&mut body).unwrap_err();
    assert!(matches!(ended, StoreError::NoRoom(NoRoom::Displaced)), "{ended:?}");
    drop((elsewhere, waiting));
    let is_cut = |client: &Slow| client.1.load(Ordering::Relaxed);
    assert!(!is_cut(&slow) && !is_cut(&other), "one was enough");
    assert_eq!(store.bundles().len(), 2);
    assert!(store.find(&stored, "s").is_some());
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
}
