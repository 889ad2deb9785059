package session

import "testing"

// Behind a transaction pooler the fences of own locks go with the client's message, ahead of the first
// statement of its transaction that may write: no message waits for an answer.
func TestOwnLocksBehindAPooler(t *testing.T) {
	const set = "SET LOCAL wirefence.lease = 'orders=7';"
	s := begunWith(t, Config{Pooling: PoolingTransaction, Guarded: func() string { return "orders=7" }}, "", discard{})
	for i, step := range []struct{ text, sent, ready string }{
		{"INSERT", set + "INSERT", "I"},
		{"BEGIN", "BEGIN", "T"},
		{"SET TRANSACTION READ WRITE", "SET TRANSACTION READ WRITE", "T"},
		{"LOCK t", "LOCK t", "T"},
		{"INSERT", set + "INSERT", "T"},
		{"INSERT", "INSERT", "T"},
		{"ROLLBACK TO a", "ROLLBACK TO a", "T"},
		{"INSERT", set + "INSERT", "T"},
		{"COMMIT AND CHAIN", "COMMIT AND CHAIN", "T"},
		{"DO ''", set + "DO ''", "T"},
		{"RESET ALL", "RESET ALL", "T"},
		{"SELECT 1", set + "SELECT 1", "E"},
		{"INSERT", "INSERT", "E"},
		{"ROLLBACK; INSERT; BEGIN; INSERT", "ROLLBACK; " + set + "INSERT; BEGIN; " + set + "INSERT", "T"},
		{"INSERT", "INSERT", "T"},
		{"COMMIT", "COMMIT", "I"},
		{"VACUUM t", "VACUUM t", "I"},
	} {
		var out Out
		s.FromClient(simple(step.text), &out)
		if got := string(joined(&out)); got != string(simple(step.sent)) {
			t.Errorf("%d, %s: sent %q", i, step.text, got)
		}
		answered(t, s, ready(step.ready))
	}
}
