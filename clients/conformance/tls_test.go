package conformance

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/wirefence/wirefence/internal/authority"
)

// The clients trust the system's certificates, and no others.
func TestTLS(t *testing.T) {
	t.Parallel()
	certificates := authority.New(t)
	pair := certificates.Issue(t, "localhost", "127.0.0.1")
	w := newWorld(t, "WIREFENCE_ADMIN_TLS_CERT_FILE="+pair.CertFile, "WIREFENCE_ADMIN_TLS_KEY_FILE="+pair.KeyFile)
	for language, c := range map[string]struct {
		trust   string
		command []string
	}{
		"python": {"SSL_CERT_FILE", []string{python, "-c", `
import os, wirefence
client = wirefence.Client(os.environ["API"], token=os.environ["API_TOKEN"])
try:
    with client.lease("python") as lease:
        print(lease.fence)
except wirefence.Unavailable as error:
    print(error)`}},
		"typescript": {"NODE_EXTRA_CA_CERTS", []string{"node", "--input-type=module", "-e", `
import { Client, Unavailable } from "wirefence";
const client = new Client(process.env.API, { token: process.env.API_TOKEN });
try {
  await client.withLease("typescript", {}, async (lease) => console.log(lease.fence));
} catch (error) {
  if (!(error instanceof Unavailable)) throw error;
  console.log(error.message);
}`}},
	} {
		t.Run(language, func(t *testing.T) {
			run := func(settings ...string) string {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, c.command[0], c.command[1:]...)
				cmd.Dir = folder
				cmd.Env = append(append(w.environment("tls", w.admin), "API=https://"+w.admin), settings...)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v", err)
				}
				return string(out)
			}
			if said := run(c.trust + "=" + certificates.CAFile); said != language+"=1\n" {
				t.Errorf("with the authority's certificate: %s", said)
			}
			if said := run(); said == language+"=2\n" {
				t.Error("a certificate of nobody is trusted")
			}
		})
	}
}
