//! The calls that can be answered wrongly.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::thread::sleep;

use fuser::{FileHandle, INodeNo, ReplyData};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::backing::{Passthrough, is_direct, read_up_to};
use super::{DirectIo, Fallocate, Faults};

impl Passthrough {
    /// Keeps the reply for later when the read shall get no answer.
    pub(super) fn stall(&self, offset: u64, size: u32, reply: ReplyData) -> Option<ReplyData> {
        let mut state = self.shared.lock();
        if touches(state.faults.stalled_reads.as_ref(), offset, size.into()) {
            state.counts.reads += 1;
            state.stalled.push(reply);
            return None;
        }
        Some(reply)
    }

    pub(super) fn faulty_read(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: i32,
    ) -> io::Result<Vec<u8>> {
        let most = {
            let mut state = self.shared.lock();
            state.counts.reads += 1;
            let faults = &state.faults;
            if is_direct(flags) && faults.direct == DirectIo::RefusedAtRead {
                return Err(Errno::INVAL.into());
            }
            if touches(faults.read_error.as_ref(), offset, size.into()) {
                return Err(Errno::IO.into());
            }
            size.min(faults.short_reads.unwrap_or(size))
        };
        let mut data = vec![0; most as usize];
        let length = read_up_to(&*self.file(handle)?, offset, &mut data)?;
        data.truncate(length);
        self.shared.lock().counts.read_bytes += length as u64;
        Ok(data)
    }

    pub(super) fn faulty_write(
        &self,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        flags: i32,
    ) -> io::Result<u32> {
        let (length, corrupt_at, slow) = {
            let mut state = self.shared.lock();
            state.counts.writes += 1;
            state.counts.direct_writes += u64::from(is_direct(flags));
            let faults = &mut state.faults;
            if is_direct(flags) && faults.direct == DirectIo::RefusedAtWrite {
                return Err(Errno::INVAL.into());
            }
            if touches(faults.write_error.as_ref(), offset, data.len() as u64) {
                return Err(Errno::IO.into());
            }
            let mut length = u32::try_from(data.len()).unwrap_or(u32::MAX);
            length = length.min(faults.short_writes.unwrap_or(length));
            if let Some(space) = &mut faults.space {
                if *space == 0 && length > 0 {
                    return Err(Errno::NOSPC.into());
                }
                length = length.min(u32::try_from(*space).unwrap_or(u32::MAX));
                *space -= u64::from(length);
            }
            (length, faults.corrupt_writes_at, faults.slow_writes)
        };
        sleep(slow);
        let data = &data[..length as usize];
        let file = self.file(handle)?;
        let mut cache = self.cache();
        if let Some(cache) = &mut cache {
            cache.about_to_write(&file, offset..offset + u64::from(length))?;
        }
        let corrupt = corrupt_at
            .and_then(|at| usize::try_from(at.checked_sub(offset)?).ok())
            .filter(|at| *at < data.len());
        if let Some(at) = corrupt {
            let mut wrong = data.to_vec();
            wrong[at] = !wrong[at];
            file.write_all_at(&wrong, offset)?;
        } else {
            file.write_all_at(data, offset)?;
        }
        drop(cache);
        self.shared.lock().counts.written_bytes += u64::from(length);
        Ok(length)
    }

    pub(super) fn faulty_fsync(&self, handle: FileHandle, data_only: bool) -> io::Result<()> {
        self.shared.lock().counts.fsyncs += 1;
        let file = self.file(handle)?;
        let fault = self.sync_fault(|faults| &mut faults.failing_fsyncs);
        if let Some(mut cache) = self.cache() {
            if fault.is_ok() {
                cache.synced(&file)?
            } else {
                cache.sync_failed(&file)?
            }
            return fault;
        }
        fault?;
        if data_only { file.sync_data() } else { file.sync_all() }
    }

    pub(super) fn faulty_folder_fsync(&self, number: INodeNo) -> io::Result<()> {
        self.shared.lock().counts.folder_fsyncs += 1;
        self.sync_fault(|faults| &mut faults.failing_folder_fsyncs)?;
        let path = self.tree().path(number)?;
        match self.cache() {
            Some(mut cache) => cache.folder_synced(&path),
            None => File::open(path)?.sync_all(),
        }
    }

    /// Takes the time for a sync, and fails as often as `which` says.
    fn sync_fault(&self, which: impl FnOnce(&mut Faults) -> &mut u32) -> io::Result<()> {
        let (slow, fails) = {
            let mut state = self.shared.lock();
            let failing = which(&mut state.faults);
            let fails = *failing > 0;
            *failing = failing.saturating_sub(1);
            (state.faults.slow_fsyncs, fails)
        };
        sleep(slow);
        if fails { Err(Errno::IO.into()) } else { Ok(()) }
    }

    pub(super) fn faulty_fallocate(
        &self,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> io::Result<()> {
        let flags = FallocateFlags::from_bits_retain(mode.unsigned_abs());
        {
            let mut state = self.shared.lock();
            state.counts.fallocates += 1;
            match state.faults.fallocate {
                Fallocate::NoZeroRange if flags.contains(FallocateFlags::ZERO_RANGE) => {
                    return Err(Errno::OPNOTSUPP.into());
                }
                Fallocate::Unsupported => return Err(Errno::OPNOTSUPP.into()),
                Fallocate::Ignored => return Ok(()),
                Fallocate::NoSpace => return Err(Errno::NOSPC.into()),
                Fallocate::Works | Fallocate::NoZeroRange => {}
            }
        }
        let file = self.file(handle)?;
        let mut cache = self.cache();
        if let Some(cache) = &mut cache {
            let zeros = flags.intersects(FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE);
            let end = if zeros { offset.saturating_add(length) } else { offset };
            cache.about_to_clear(&file, offset..end)?;
        }
        Ok(fallocate(&*file, flags, offset, length)?)
    }

    pub(super) fn faulty_seek(&self, handle: FileHandle, offset: i64, whence: i32) -> io::Result<i64> {
        let file = self.file(handle)?;
        let start = u64::try_from(offset).map_err(|_| Errno::INVAL)?;
        let lies = {
            let mut state = self.shared.lock();
            state.counts.seeks += 1;
            state.faults.no_data
        };
        let size = file.metadata()?.len();
        let target = match whence {
            libc::SEEK_DATA if lies => return Err(Errno::NXIO.into()),
            libc::SEEK_HOLE if lies && start < size => return Ok(offset),
            libc::SEEK_DATA => SeekFrom::Data(start),
            libc::SEEK_HOLE => SeekFrom::Hole(start),
            _ => return Err(Errno::INVAL.into()),
        };
        let found = seek(&*file, target)?;
        i64::try_from(found).map_err(|_| Errno::OVERFLOW.into())
    }
}

/// True when `length` bytes from `offset` lie partly in `range`.
fn touches(range: Option<&Range<u64>>, offset: u64, length: u64) -> bool {
    range.is_some_and(|range| offset < range.end && range.start < offset.saturating_add(length))
}

#[cfg(test)]
mod tests {
    use super::touches;

    #[test]
    fn ranges_touch_only_when_they_share_a_byte() {
        let range = 100..200;
        for (offset, length, expected) in
            [(0, 100, false), (0, 101, true), (199, 1, true), (200, 9, false), (150, 0, true)]
        {
            assert_eq!(touches(Some(&range), offset, length), expected, "{offset}+{length}");
        }
        assert!(!touches(None, 0, u64::MAX));
    }
}
