package fence

import "strings"

// Probe is a fence that no check accepts. wirefence doctor sends it through a proxy to see
// that fences are checked there.
const Probe = "wirefence-doctor=1,wirefence-doctor=2"

// probeDetail is the DETAIL with which it is refused.
const probeDetail = `Resource "wirefence-doctor" has two tokens.`

// IsProbe reports whether a refusal with these texts is that of Probe, which is nobody's
// write. In shadow mode DETAIL is behind the message.
func IsProbe(state SQLState, message, detail string) bool {
	return state == MalformedToken && (detail == probeDetail || detail == "" && strings.HasSuffix(message, ". "+probeDetail))
}
