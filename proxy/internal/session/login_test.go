package session

import "testing"

// A pooler may have given the database another name than the one that the client
// came by.
func TestTheDatabaseNamesItself(t *testing.T) {
	s := begun(t, "")
	if got := s.Reached(); got != "at_home" {
		t.Errorf("the session is in %q", got)
	}
}
