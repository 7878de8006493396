//! The CUDA driver: loaded when it is first asked for. It is the one that torch and JAX use in this process.

use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Mutex, OnceLock, PoisonError};

/// What went wrong, and at what.
pub type Result<T> = std::result::Result<T, String>;

/// A stream, an event or a context: the driver's address of it. 0 is the default stream.
pub type Handle = usize;

/// An address on a GPU.
pub type Address = usize;

const LIBRARY: &str = "libcuda.so.1";
/// CU_STREAM_NON_BLOCKING: it does not wait for the default stream, nor that for it.
const NON_BLOCKING: c_uint = 1;
/// CU_EVENT_BLOCKING_SYNC and CU_EVENT_DISABLE_TIMING: a thread that waits sleeps, and a stream that waits does so cheaply.
const SLEEPING_NO_TIMING: c_uint = 1 | 2;
/// CU_MEMHOSTREGISTER_PORTABLE: for every context of the process.
const PORTABLE: c_uint = 1;
/// CUDA_ERROR_NOT_READY.
const NOT_READY: c_int = 600;

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The calls, under the names that the driver has for them.
        #[allow(non_snake_case)]
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is the CUDA driver, and stays.
            unsafe fn of(library: &'static Library) -> std::result::Result<Functions, libloading::Error> {
                // SAFETY: the types are those of the driver's header.
                unsafe { Ok(Functions { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuGetErrorString(c_int, *mut *const c_char);
    cuDeviceGet(*mut c_int, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuCtxPushCurrent_v2(Handle);
    cuCtxPopCurrent_v2(*mut Handle);
    cuCtxSynchronize();
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuEventCreate(*mut Handle, c_uint);
    cuEventRecord(Handle, Handle);
    cuEventQuery(Handle);
    cuEventSynchronize(Handle);
    cuEventDestroy_v2(Handle);
}

struct Driver {
    functions: Functions,
    /// The contexts that were opened, by the number of their GPU. They stay as long as the process.
    contexts: Mutex<Vec<(i32, Handle)>>,
}

impl Driver {
    fn get() -> Result<&'static Driver> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Driver::load).as_ref().map_err(String::clone)
    }

    fn load() -> Result<Driver> {
        let missing = |error| format!("it needs the NVIDIA driver, and there is none here: {error}");
        // SAFETY: the driver runs nothing of ours when it is loaded, and is never unloaded.
        let library = Box::leak(Box::new(unsafe { Library::new(LIBRARY) }.map_err(missing)?));
        // SAFETY: as above.
        let functions = unsafe { Functions::of(library) }.map_err(missing)?;
        let driver = Driver { functions, contexts: Mutex::default() };
        // SAFETY: the first call, with the one argument that it takes.
        driver.checked(unsafe { (driver.functions.cuInit)(0) }, "starting CUDA")?;
        Ok(driver)
    }

    fn checked(&self, code: c_int, what: &str) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the driver sets the pointer to a text that stays, or to null.
        let reason = unsafe {
            (self.functions.cuGetErrorString)(code, &mut text);
            (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy())
        };
        Err(format!("{what} failed: {}", reason.unwrap_or_else(|| format!("error {code}").into())))
    }
}

/// A GPU, with the context that all libraries of the process share.
#[derive(Clone, Copy)]
pub struct Gpu {
    driver: &'static Driver,
    context: Handle,
}

impl Gpu {
    pub fn open(number: i32) -> Result<Gpu> {
        let driver = Driver::get()?;
        let mut contexts = driver.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&(_, context)) = contexts.iter().find(|(known, _)| *known == number) {
            return Ok(Gpu { driver, context });
        }
        let (mut device, mut context) = (0, 0);
        // SAFETY: the driver writes to where the pointers point.
        unsafe {
            let functions = &driver.functions;
            driver.checked((functions.cuDeviceGet)(&mut device, number), "finding a GPU")?;
            driver.checked((functions.cuDevicePrimaryCtxRetain)(&mut context, device), "opening the GPU")?;
        }
        contexts.push((number, context));
        Ok(Gpu { driver, context })
    }

    /// Makes this the GPU of the calling thread, until the guard is dropped.
    pub fn enter(self) -> Result<Entered> {
        // SAFETY: the context was opened, and stays.
        let code = unsafe { (self.driver.functions.cuCtxPushCurrent_v2)(self.context) };
        self.driver.checked(code, "entering the GPU's context")?;
        Ok(Entered { driver: self.driver, _of_this_thread: std::marker::PhantomData })
    }
}

/// The calls to a GPU. Copies and waits go to streams, and are asynchronous.
pub struct Entered {
    driver: &'static Driver,
    _of_this_thread: std::marker::PhantomData<*mut ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: pops what `Gpu::enter` pushed in this thread.
        unsafe { (self.driver.functions.cuCtxPopCurrent_v2)(&mut 0) };
    }
}

impl Entered {
    fn checked(&self, code: c_int, what: &str) -> Result<()> {
        self.driver.checked(code, what)
    }

    /// # Safety
    /// The memory is mapped until it is unregistered.
    pub unsafe fn register(&self, address: usize, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        let code =
            unsafe { (self.driver.functions.cuMemHostRegister_v2)(address as *mut c_void, bytes, PORTABLE) };
        self.checked(code, &format!("page-locking {bytes} bytes (ulimit -l, or too little memory?)"))
    }

    /// After all copies, of whichever stream.
    pub fn unregister(&self, address: usize) {
        // SAFETY: the driver knows what is registered, and does nothing else.
        unsafe {
            (self.driver.functions.cuCtxSynchronize)();
            (self.driver.functions.cuMemHostUnregister)(address as *mut c_void);
        }
    }

    /// # Safety
    /// Both ends have as many bytes, until the stream is done with them.
    pub unsafe fn to_gpu(&self, to: Address, from: usize, bytes: usize, stream: Handle) -> Result<()> {
        // SAFETY: as the caller promises.
        let code =
            unsafe { (self.driver.functions.cuMemcpyHtoDAsync_v2)(to, from as *const c_void, bytes, stream) };
        self.checked(code, "copying to the GPU")
    }

    /// # Safety
    /// As for [`to_gpu`](Self::to_gpu).
    pub unsafe fn to_host(&self, to: usize, from: Address, bytes: usize, stream: Handle) -> Result<()> {
        // SAFETY: as the caller promises.
        let code =
            unsafe { (self.driver.functions.cuMemcpyDtoHAsync_v2)(to as *mut c_void, from, bytes, stream) };
        self.checked(code, "copying from the GPU")
    }

    pub fn new_stream(&self) -> Result<Handle> {
        let mut stream = 0;
        // SAFETY: the driver writes to where the pointer points.
        let code = unsafe { (self.driver.functions.cuStreamCreate)(&mut stream, NON_BLOCKING) };
        self.checked(code, "making a stream").map(|()| stream)
    }

    /// # Safety
    /// The stream is one of [`new_stream`](Self::new_stream), and not used again. Work that it has is done first.
    pub unsafe fn destroy_stream(&self, stream: Handle) {
        // SAFETY: as the caller promises.
        unsafe { (self.driver.functions.cuStreamDestroy_v2)(stream) };
    }

    /// Waits until everything that the stream was given is done.
    pub fn synchronize(&self, stream: Handle) -> Result<()> {
        // SAFETY: the driver refuses what is no stream of its own making.
        let code = unsafe { (self.driver.functions.cuStreamSynchronize)(stream) };
        self.checked(code, "waiting for copies")
    }

    /// Lets a stream wait for an event.
    pub fn wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        // SAFETY: as in `synchronize`.
        let code = unsafe { (self.driver.functions.cuStreamWaitEvent)(stream, event, 0) };
        self.checked(code, "waiting for a copy")
    }

    pub fn new_event(&self) -> Result<Handle> {
        let mut event = 0;
        // SAFETY: the driver writes to where the pointer points.
        let code = unsafe { (self.driver.functions.cuEventCreate)(&mut event, SLEEPING_NO_TIMING) };
        self.checked(code, "making an event").map(|()| event)
    }

    /// The event stands for everything that the stream was given so far.
    pub fn record(&self, event: Handle, stream: Handle) -> Result<()> {
        // SAFETY: as in `synchronize`.
        let code = unsafe { (self.driver.functions.cuEventRecord)(event, stream) };
        self.checked(code, "marking a copy")
    }

    /// Whether what the event stands for is done.
    pub fn is_done(&self, event: Handle) -> Result<bool> {
        // SAFETY: as in `synchronize`.
        match unsafe { (self.driver.functions.cuEventQuery)(event) } {
            NOT_READY => Ok(false),
            code => self.checked(code, "looking at a copy").map(|()| true),
        }
    }

    /// Waits until what the event stands for is done.
    pub fn wait_for(&self, event: Handle) -> Result<()> {
        // SAFETY: as in `synchronize`.
        let code = unsafe { (self.driver.functions.cuEventSynchronize)(event) };
        self.checked(code, "waiting for a copy")
    }

    /// # Safety
    /// The event is one of [`new_event`](Self::new_event), and not used again.
    pub unsafe fn destroy_event(&self, event: Handle) {
        // SAFETY: as the caller promises.
        unsafe { (self.driver.functions.cuEventDestroy_v2)(event) };
    }
}
