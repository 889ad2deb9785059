package fence

// IsSetting reports whether the schema wirefence reads a setting of this name, given in
// lower case: the fence, that of an adopted lock, an operator's reason for a change, the policy of a migration, and
// those by which its functions tell each other what they have done. A fence under any other
// name would be kept and never checked.
func IsSetting(name string) bool {
	switch name {
	case Variable, "wirefence.lease", "wirefence.reason", "wirefence.failover", "wirefence.recording",
		"wirefence.checked", "wirefence.server", "wirefence.noted", "wirefence.ended", "wirefence.observing", "wirefence.history_away":
		return true
	}
	return false
}
