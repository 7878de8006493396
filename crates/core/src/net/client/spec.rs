//! The settings of clients and mirrors: how to reach the learner, and what is special to each of them.

use crate::net::wire::tls::ClientTls;
use crate::policies::OnRestart;

/// Declares settings: how to reach the learner, and more fields with their defaults.
macro_rules! connect_spec {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name {
            pub host: String,
            pub port: u16,
            /// `None`: that of a learner of the same user on this machine, from its token file.
            pub token: Option<Vec<u8>>,
            pub tls: Option<ClientTls>,
            /// How long to try for the first connection; the learner may start later.
            pub connect_timeout: std::time::Duration,
            /// How long to try again after a connection was lost.
            pub reconnect_timeout: std::time::Duration,
            pub keepalive: std::time::Duration,
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> $name {
                $name {
                    host: "127.0.0.1".to_owned(),
                    port: 0,
                    token: None,
                    tls: None,
                    connect_timeout: std::time::Duration::from_secs(10),
                    reconnect_timeout: std::time::Duration::from_secs(60),
                    keepalive: std::time::Duration::from_secs(5),
                    $($field: $default,)*
                }
            }
        }

        impl $name {
            pub(in crate::net) fn connector(&self) -> crate::error::Result<$crate::net::client::dial::Connector> {
                let (token, tls) = (self.token.as_deref(), self.tls.as_ref());
                let timeouts = [self.connect_timeout, self.reconnect_timeout, self.keepalive];
                $crate::net::client::dial::Connector::new((&self.host, self.port), token, tls, timeouts)
            }
        }
    };
}

connect_spec! {
    /// Where the learner is, and how the client behaves. `..TcpClientSpec::default()` fills in the rest.
    TcpClientSpec {
        /// The number on what it sends; the learner chooses one if `None`.
        producer_id: Option<u32> = None,
        /// Frames without acknowledgement, at most. Each is a buffer of about 256 KiB, or one sample or record that is larger.
        max_inflight_msgs: usize = 32,
        /// Samples or records without acknowledgement, at most. `None`: as many as the frames hold.
        max_unacknowledged: Option<usize> = None,
        on_restart: OnRestart = OnRestart::Raise,
    }
}

connect_spec! {
    /// Where the learner is, and what the copy should be. `..WeightMirrorSpec::default()` fills in the rest.
    WeightMirrorSpec {
        /// The name of the local segment, for other processes on this host. `None`: in this process only.
        name: Option<String> = None,
        /// The schema text of the weights that the callers make room for: other leaves are refused. `None`: any weights.
        wanted: Option<Vec<u8>> = None,
        /// How much memory the copy may take at first; `None`: half of what is free.
        max_bytes: Option<u64> = None,
        /// Whether to wait for another learner when this one closes its weights.
        outlives_learners: bool = false,
        max_buffers: usize = 8,
        max_peers: usize = 67,
        /// Threads that copy unchanged leaves into a new version, and leaves to readers.
        threads: usize = 1,
    }
}
