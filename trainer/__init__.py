"""DFlash drafter trainer: trains a block drafter for a frozen language model. It shares no import with opsctl."""
