//! How much memory there is to be had: what the kernel says is available, and what the container is allowed.

use std::fs::read_to_string;

/// Bytes that could be reserved now; `None` where nobody says.
pub fn left() -> Option<u64> {
    let machine = read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    // In a container the own group is the root of what can be seen. It may hold caches, so only the limit counts.
    let container =
        read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    machine.into_iter().chain(container).min()
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_bytes() {
        assert_eq!(available("MemTotal: 8 kB\nMemAvailable:   21088 kB\n"), Some(21088 * 1024));
        assert_eq!(available("MemTotal: 8 kB\n"), None);
        assert!(left().is_none_or(|left| left > 1 << 20));
    }
}
