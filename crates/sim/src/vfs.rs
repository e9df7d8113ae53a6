//! A VFS over SQLite's own that lets a [`Watch`] see, delay and refuse what goes to the disk.
//!
//! Everything unsafe of this crate is here. What makes it sound: SQLite calls these functions only with the pointers
//! that this file gave it, one thread at a time for each open file; a registered VFS is never freed; and no panic
//! leaves a [`Watch`], whose methods only lock, count and copy.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::ffi;

/// What may be done about operations on named files. Temporary files, which no power cut brings back, go unseen.
pub(crate) trait Watch: Send + Sync + 'static {
    /// Does a write by calling `write`; or refuses it with SQLite's code of an error.
    fn write(&self, _path: &Path, _offset: u64, _bytes: &[u8], write: &mut dyn FnMut() -> c_int) -> c_int {
        write()
    }

    /// Does a truncation by calling `truncate`.
    fn truncate(&self, _path: &Path, _len: u64, truncate: &mut dyn FnMut() -> c_int) -> c_int {
        truncate()
    }

    /// Does a sync by calling `sync`.
    fn sync(&self, _path: &Path, sync: &mut dyn FnMut() -> c_int) -> c_int {
        sync()
    }

    /// Opens, and perhaps makes, a file by calling `open`.
    fn open(&self, _path: &Path, open: &mut dyn FnMut() -> c_int) -> c_int {
        open()
    }

    /// Deletes a file by calling `delete`.
    fn delete(&self, _path: &Path, delete: &mut dyn FnMut() -> c_int) -> c_int {
        delete()
    }
}

/// Registers a VFS whose operations go past `watch`, and returns its name.
///
/// # Panics
/// Where SQLite has no VFS to stand on, or no memory: then no test can run.
pub(crate) fn register(watch: Arc<dyn Watch>) -> String {
    static REGISTERED: AtomicU64 = AtomicU64::new(0);
    let name = format!("retrysafe-sim-{}", REGISTERED.fetch_add(1, Ordering::Relaxed));
    let c_name = CString::new(name.clone()).unwrap_or_default();
    // SAFETY: finding and registering need SQLite to be initialised, which `sqlite3_vfs_find` does by itself. The new
    // VFS is a copy of the one it stands on, with its own name, size and data, all of which are leaked, so they live as long
    // as SQLite may use them. The functions that are copied along do not look at `pAppData` in SQLite's unix VFS; the two
    // that do are replaced.
    let code = unsafe {
        let base = ffi::sqlite3_vfs_find(ptr::null());
        assert!(!base.is_null(), "SQLite has no VFS");
        let shim = Box::leak(Box::new(Shim { base, watch }));
        let mut vfs = *base;
        // Version 2: without the hooks for replacing system calls.
        vfs.iVersion = 2;
        vfs.szOsFile = SHIM_FILE_BYTES as c_int + (*base).szOsFile;
        vfs.pNext = ptr::null_mut();
        vfs.zName = c_name.into_raw();
        vfs.pAppData = ptr::from_mut(shim).cast();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0)
    };
    assert_eq!(code, ffi::SQLITE_OK, "SQLite refused a VFS");
    name
}

/// What a registered VFS points to.
struct Shim {
    base: *mut ffi::sqlite3_vfs,
    watch: Arc<dyn Watch>,
}

/// An open file, as SQLite sees it. The file of the VFS below follows it in memory.
#[repr(C)]
struct ShimFile {
    /// First, so that a pointer to this is a pointer to a `sqlite3_file`.
    methods: ffi::sqlite3_file,
    /// Owned; freed by `close`.
    open: *mut Open,
}

struct Open {
    shim: *const Shim,
    /// `None`: a temporary file.
    path: Option<PathBuf>,
}

const SHIM_FILE_BYTES: usize = size_of::<ShimFile>();

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    // Version 2: with shared memory, which a write-ahead log needs, without memory-mapped pages, which would be written
    // past this file.
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// The file of the VFS below.
///
/// # Safety
/// `file` is one that SQLite allocated for a VFS of this module.
unsafe fn below(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: `szOsFile` asked for the bytes of both, and those of a `ShimFile` are a multiple of a pointer's.
    unsafe { file.cast::<u8>().add(SHIM_FILE_BYTES).cast() }
}

/// What is known about an open file.
///
/// # Safety
/// As [`below`], and `open` succeeded for it, and `close` has not been called.
unsafe fn opened<'a>(file: *mut ffi::sqlite3_file) -> (&'a Shim, Option<&'a Path>) {
    // SAFETY: `open` stored a pointer to a box that only `close` frees, and that points to a leaked `Shim`.
    unsafe {
        let open = &*(*file.cast::<ShimFile>()).open;
        (&*open.shim, open.path.as_deref())
    }
}

/// Calls a method of the file below.
macro_rules! forward {
    ($file:ident, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: `file` is open, so the file below has methods; a method that is missing there is answered as SQLite asks.
        unsafe {
            let real = below($file);
            match (*(*real).pMethods).$method {
                Some(method) => method(real $(, $argument)*),
                None => ffi::SQLITE_IOERR.into(),
            }
        }
    }};
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls this with the VFS that `register` made and with `szOsFile` bytes for the file; the name lives as long
    // as the file is open. Without methods set, SQLite does not call `close`.
    unsafe {
        (*file).pMethods = ptr::null();
        let shim: &Shim = &*(*vfs).pAppData.cast();
        let real = below(file);
        let mut open_below = || match (*shim.base).xOpen {
            Some(open) => open(shim.base, name, real, flags, out_flags),
            None => ffi::SQLITE_CANTOPEN,
        };
        let path = path_of(name);
        let code = match &path {
            Some(path) => shim.watch.open(path, &mut open_below),
            None => open_below(),
        };
        if code != ffi::SQLITE_OK {
            if let Some(methods) = (*real).pMethods.as_ref()
                && let Some(close) = methods.xClose
            {
                close(real);
            }
            return code;
        }
        (*file.cast::<ShimFile>()).open = Box::into_raw(Box::new(Open { shim, path }));
        (*file).pMethods = &raw const METHODS;
        code
    }
}

unsafe extern "C" fn delete(vfs: *mut ffi::sqlite3_vfs, name: *const c_char, sync_dir: c_int) -> c_int {
    // SAFETY: as `open`.
    unsafe {
        let shim: &Shim = &*(*vfs).pAppData.cast();
        let mut delete_below = || match (*shim.base).xDelete {
            Some(delete) => delete(shim.base, name, sync_dir),
            None => ffi::SQLITE_IOERR_DELETE,
        };
        match path_of(name) {
            Some(path) => shim.watch.delete(&path, &mut delete_below),
            None => delete_below(),
        }
    }
}

/// # Safety
/// `name` is null or a C string.
unsafe fn path_of(name: *const c_char) -> Option<PathBuf> {
    // SAFETY: the caller's.
    (!name.is_null()).then(|| unsafe { PathBuf::from(OsStr::from_bytes(CStr::from_ptr(name).to_bytes())) })
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let code = forward!(file, xClose);
    // SAFETY: SQLite closes a file once, whatever the code, and uses it no more.
    unsafe {
        drop(Box::from_raw((*file.cast::<ShimFile>()).open));
        (*file).pMethods = ptr::null();
    }
    code
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    let mut write_below = || forward!(file, xWrite, bytes, len, offset);
    // SAFETY: the file is open, and SQLite gives `len` bytes to write.
    let (shim, path, content) = unsafe {
        let (shim, path) = opened(file);
        let len = usize::try_from(len).unwrap_or(0);
        (shim, path, std::slice::from_raw_parts(bytes.cast::<u8>(), len))
    };
    match path {
        Some(path) => shim.watch.write(path, offset.cast_unsigned(), content, &mut write_below),
        None => write_below(),
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, len: i64) -> c_int {
    let mut truncate_below = || forward!(file, xTruncate, len);
    // SAFETY: the file is open.
    match unsafe { opened(file) } {
        (shim, Some(path)) => shim.watch.truncate(path, len.cast_unsigned(), &mut truncate_below),
        (_, None) => truncate_below(),
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    let mut sync_below = || forward!(file, xSync, flags);
    // SAFETY: the file is open.
    match unsafe { opened(file) } {
        (shim, Some(path)) => shim.watch.sync(path, &mut sync_below),
        (_, None) => sync_below(),
    }
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    bytes: *mut c_void,
    len: c_int,
    offset: i64,
) -> c_int {
    forward!(file, xRead, bytes, len, offset)
}

unsafe extern "C" fn file_size(file: *mut ffi::sqlite3_file, size: *mut i64) -> c_int {
    forward!(file, xFileSize, size)
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    forward!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    forward!(file, xUnlock, level)
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    forward!(file, xCheckReservedLock, out)
}

unsafe extern "C" fn file_control(
    file: *mut ffi::sqlite3_file,
    operation: c_int,
    argument: *mut c_void,
) -> c_int {
    forward!(file, xFileControl, operation, argument)
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    forward!(file, xSectorSize)
}

unsafe extern "C" fn device_characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    forward!(file, xDeviceCharacteristics)
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    page: c_int,
    page_size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    forward!(file, xShmMap, page, page_size, extend, out)
}

unsafe extern "C" fn shm_lock(file: *mut ffi::sqlite3_file, offset: c_int, n: c_int, flags: c_int) -> c_int {
    forward!(file, xShmLock, offset, n, flags)
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    // SAFETY: as `forward`, without an answer.
    unsafe {
        let real = below(file);
        if let Some(barrier) = (*(*real).pMethods).xShmBarrier {
            barrier(real);
        }
    }
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    forward!(file, xShmUnmap, delete)
}
