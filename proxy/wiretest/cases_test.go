package wiretest

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// cases are what other proxies got wrong, each with its tests: "scripts" are those that begin
// with its number.
var cases = [][]string{
	{"A pipeline in which a later insert fails leaves no row", "scripts"},
	{"Parse, Describe and Flush without a Sync", "scripts"},
	{"A portal stopped by its row limit lives on", "scripts"},
	{"A Describe behind two Executes", "scripts"},
	{"An error is sent at once, discards all up to the Sync, and brings one ReadyForQuery", "scripts", "TestRefusals", "TestRefusalsAreSentAtOnce"},
	{"Batches ahead of the answers; messages cut anywhere; lone Syncs", "scripts"},
	{"COPY in both protocols", "scripts"},
	{"A late cancellation hits no later query and no check", "TestLateCancelHitsNothing", "TestCancelReachesTheQuery", "TestCancelsAtEveryPointOfAnExchange"},
	{"Cancel keys of any length, or none; cancellations inside TLS", "TestCancelReachesTheQuery", "TestCancelOfNobody", "TestCancelOverTLS", "TestServerWithoutBackendKeyData"},
	{"A later protocol or unknown options get one NegotiateProtocolVersion", "scripts"},
	{"Several ParameterStatus, notices, and notifications to an idle session", "scripts", "TestSessionsOverTLS"},
	{"Startup packets in pieces; plaintext behind a request for encryption; direct TLS", "scripts", "TestGarbageOnThePort", "TestEncryptionIsDeclined", "TestTLSHandshakes", "TestDirectTLSOfTheUpstream"},
	{"A backend that dies sends one FATAL", "scripts", "TestServerDies"},
	{"Bulk data, slow readers, half-closed sockets, clients that vanish", "scripts", "TestBulkBothWays", "TestSlowReader", "TestVanishedClientsLeaveNoBackend"},
	{"A hostile search_path; garbage before the login", "TestHostileSearchPath", "TestGarbageOnThePort", "FuzzStartup"},
	{"FunctionCall messages", "scripts"},
	{"SCRAM with TLS on either side or both, with channel binding and without", "TestLoginMethods", "TestScramWithTLSOnEitherSide", "TestChannelBindingThroughTheServersOwnCertificate"},
	{"What a session keeps lives on; DISCARD ALL and DEALLOCATE ALL drop the prepared check too", "scripts"},
	{"A check beside a concurrent handoff decides by what is committed when it has its lock", "TestTakeoverFromBusySessions", "TestNoStaleWriteUnderRandomTraffic", "TestOldSnapshotsGiveNoVerdict"},
	{"Draining on SIGTERM", "TestDrain", "TestDrainTimeout", "TestDrainGrace", "TestSignalsDrain"},
}

// Each case has tests, which are there.
func TestEachCaseIsTested(t *testing.T) {
	source, err := exec.Command("grep", "-rhoE", "--include=*_test.go", `^func (Test|Fuzz)\w+`, "../..").Output()
	if err != nil {
		t.Fatal(err)
	}
	tests := strings.Fields(strings.ReplaceAll(string(source), "func ", ""))
	for i, c := range cases {
		number := fmt.Sprintf("%02d ", i+1)
		if len(c) == 1 {
			t.Errorf("case %d has no test", i+1)
		}
		for _, name := range c[1:] {
			if name == "scripts" && !slices.ContainsFunc(scripts, func(s script) bool { return strings.HasPrefix(s.name, number) }) {
				t.Errorf("case %d has no scripts", i+1)
			} else if name != "scripts" && !slices.Contains(tests, name) {
				t.Errorf("case %d names %s, which isn't there", i+1, name)
			}
		}
	}
}
