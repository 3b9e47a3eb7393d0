//! The texts of the scripts.

/// Identifies a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verb {
    /// `acquire.lua`
    Acquire,
    /// `renew.lua`
    Renew,
    /// `complete.lua`
    Complete,
    /// `fail.lua`
    Fail,
    /// `release.lua`
    Release,
    /// `cancel.lua`
    Cancel,
    /// `give_up.lua`
    GiveUp,
    /// `redrive.lua`
    Redrive,
    /// `record_step.lua`
    RecordStep,
}

/// A script, and the hash by which a server caches it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) text: &'static str,
    pub(crate) hash: String,
}

impl Script {
    fn new(text: &'static str) -> Self {
        let hash = redis::Script::new(text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// All scripts.
#[derive(Clone, Debug)]
pub(crate) struct Scripts([Script; 9]);

impl Scripts {
    pub(crate) fn get(&self, verb: Verb) -> &Script {
        &self.0[verb as usize]
    }

    pub(crate) fn replace(&mut self, verb: Verb, text: &'static str) {
        self.0[verb as usize] = Script::new(text);
    }
}

impl Default for Scripts {
    fn default() -> Self {
        // In the order of `Verb`.
        let texts = [
            campanile_lua::ACQUIRE,
            campanile_lua::RENEW,
            campanile_lua::COMPLETE,
            campanile_lua::FAIL,
            campanile_lua::RELEASE,
            campanile_lua::CANCEL,
            campanile_lua::GIVE_UP,
            campanile_lua::REDRIVE,
            campanile_lua::RECORD_STEP,
        ];
        Self(texts.map(Script::new))
    }
}
