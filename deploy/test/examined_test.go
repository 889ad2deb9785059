package deploy

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// misses are the faults of a file or an object.
type misses []string

// want adds a fault unless the condition holds.
func (m *misses) want(ok bool, format string, args ...any) {
	if !ok {
		*m = append(*m, fmt.Sprintf(format, args...))
	}
}

func (m *misses) add(prefix string, others misses) {
	for _, other := range others {
		*m = append(*m, prefix+other)
	}
}

// report fails the test for each fault.
func (m misses) report(t *testing.T, about string) {
	t.Helper()
	for _, miss := range m {
		t.Errorf("%s: %s", about, miss)
	}
}

// examined are the files that users deploy, and what finds the faults of their text.
var examined = map[string]func(text string) misses{
	composeFile:                         composeMisses,
	"../Dockerfile":                     dockerfileMisses,
	manifestDir + "/sidecar.yaml":       ofObjects(sidecarMisses),
	manifestDir + "/standalone.yaml":    ofObjects(plainStandaloneMisses),
	manifestDir + "/migrate.yaml":       ofObjects(plainMigrateMisses),
	manifestDir + "/injection.yaml":     ofObjects(injectionMisses),
	manifestDir + "/networkpolicy.yaml": ofObjects(policyMisses),
	manifestDir + "/kustomization.yaml": ofObjects(kustomizationMisses),
}

func TestFiles(t *testing.T) {
	t.Parallel()
	for file, examine := range examined {
		examine(read(t, file)).report(t, file)
	}
	manifests, err := filepath.Glob(manifestDir + "/*.y*ml")
	if err != nil || len(manifests) == 0 {
		t.Fatal("no manifests found")
	}
	for _, file := range manifests {
		if examined[file] == nil {
			t.Errorf("%s is not examined", file)
		}
	}
}

// faults are changes of each file that must be noticed.
var faults = map[string][]struct{ old, replacement, noticed string }{
	composeFile: {
		{"    restart: unless-stopped\n", "    restarts: unless-stopped\n", "restarts"},
		{"WIREFENCE_MODE:", "WIREFENCE_MOOD:", "WIREFENCE_MOOD is no setting"},
		{"      WIREFENCE_UPSTREAM:", "      # WIREFENCE_UPSTREAM:", "WIREFENCE_UPSTREAM is not set"},
		{"0.0.0.0:9433", "127.0.0.1:9433", "probes can't reach"},
		{"service_completed_successfully", "service_started", "proxy doesn't wait until migrate"},
		{"      redis:\n        condition: service_healthy\n", "", "proxy doesn't wait until redis"},
		{"redis-cli", "true", "redis has no health check of its own"},
		{"\"/wirefence\", \"status\", \"--ready\"", "\"NONE\"", "proxy has no health check of its own"},
		{"networks: [data, front]", "networks: [front]", "proxy is not on the network data"},
		{"networks: [data]", "networks: [data, front]", "postgres is on networks other than data"},
		{"    internal: true\n", "    internal: false\n", "network data has a way out"},
		{"postgres:/var/lib/postgresql\n", "/tmp/postgres:/var/lib/postgresql\n", "postgres keeps its data in no named volume"},
		{"    restart: \"no\"\n", "", "migrate doesn't run just once"},
		{"\"127.0.0.1:${WIREFENCE_PORT", "\"${WIREFENCE_PORT", "published beyond loopback"},
		{"      WIREFENCE_REDIS_URL: redis://redis:6379/0\n", "", "keep their leases in another store"},
		{":/admin-tokens:ro", ":/tokens:ro", "proxy has no /admin-tokens"},
		{":/admin-tokens:ro", ":/admin-tokens", "proxy has no /admin-tokens"},
		{"    pull_policy: never\n    profiles", "    profiles", "tools may run an image of a registry"},
		{"profiles: [tools]", "profiles: []", "tools is started with the others"},
		{"      target: tools\n", "", "tools is not built from the stage tools"},
		{"PGHOST: proxy", "PGHOST: postgres", "psql bypasses the proxy"},
		{"postgres://wirefence:", "postgres://postgres:", "proxy connects as another role than the issuer's"},
		{"    networks: [data]\n", "    networks: [data]\n    ports: [\"127.0.0.1:5432:5432\"]\n", "postgres publishes a port"},
	},
	"../Dockerfile": {
		{"USER 65532:65532\n", "", "runs as root"},
		{"USER 65532:65532\n", "USER 65532:65532\nUSER 0\n", "runs as root"},
		{"USER 65532:65532\n", "USER nobody\n", "not a number"},
		{"FROM scratch", "FROM debian:12", "not built on scratch"},
		{"CGO_ENABLED=0", "CGO_ENABLED=1", "not static"},
		{"ENTRYPOINT [\"/wirefence\"]", "ENTRYPOINT /wirefence", "needs a shell"},
		{"ENTRYPOINT [\"/wirefence\"]", "", "no ENTRYPOINT"},
		{"CMD [\"/wirefence\", \"status\", \"--ready\"]", "CMD /wirefence status --ready", "needs a shell"},
		{"HEALTHCHECK --interval=5s", "HEALTHCHECK --interval", "can't be parsed"},
		{"golang:1.26-bookworm", "golang", "golang has no tag"},
	},
	manifestDir + "/injection.yaml": {
		{"c.name == 'wirefence')", "c.nam = 'wirefence')", "Syntax error"},
		{"value: object.metadata.labels", "value: objekt.metadata.labels", "undeclared reference"},
		{"op: 'add', path: '/spec/initContainers/0'", "operation: 'add', path: '/spec/initContainers/0'", "operation"},
		{"              restartPolicy: 'Always',\n", "", "is no native sidecar"},
		{"'WIREFENCE_LEASE'", "'WIREFENCE_LEASES'", "WIREFENCE_LEASES is no setting"},
		{"runAsNonRoot: true", "runAsNonRoot: false", "may run as root"},
		{"path: '/livez'", "path: '/readyz'", "liveness probe"},
		{"'127.0.0.1:6433'", "'0.0.0.0:6433'", "listens beyond its pod"},
		{"name: 'wirefence-issuer', mountPath", "name: 'wirefence-owner', mountPath", "has no volume"},
	},
	manifestDir + "/sidecar.yaml": {
		{"          restartPolicy: Always\n", "", "is no native sidecar"},
		{"@127.0.0.1:6433", "@postgres:5432", "application doesn't connect to the sidecar"},
		{"value: 127.0.0.1:6433", "value: 0.0.0.0:6433", "listens beyond its pod"},
		{"value: 0.0.0.0:9433", "value: 127.0.0.1:9433", "probes can't reach"},
		{"WIREFENCE_MODE", "WIREFENCE_MOOD", "WIREFENCE_MOOD is no setting"},
		{"startupProbe:", "readinessProbe2:", "unknown field"},
		{"path: /livez", "path: /readyz", "liveness probe"},
		{"runAsNonRoot: true", "runAsNonRoot: false", "may run as root"},
		{"type: RuntimeDefault", "type: Unconfined", "seccomp"},
		{"allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "escalate"},
		{"readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "writes to its root"},
		{"drop: [\"ALL\"]", "drop: [\"NET_RAW\"]", "capabilities"},
		{"              memory: 128Mi\n", "              cpu: 1\n", "no limit of memory"},
		{"WIREFENCE_DATABASE_URL_FILE\n              value: /etc/wirefence/issuer/database-url", "WIREFENCE_DATABASE_URL\n              value: postgres://issuer:secret@postgres/app", "is not from a secret"},
		{"path: issuer/database-url", "path: issuer/url", "which is not there"},
		{"value: 115MiB", "value: 128MiB", "GOMEMLIMIT"},
		{"          volumeMounts:\n            - name: wirefence\n", "          volumeMounts:\n            - name: issuer\n", "there is no volume issuer"},
		{"automountServiceAccountToken: false", "automountServiceAccountToken: true", "token of Kubernetes"},
	},
	manifestDir + "/standalone.yaml": {
		{"replicas: 2", "replicas: 1", "replicas"},
		{"minAvailable: 1", "minAvailable: 2", "can't be drained"},
		{"terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 5", "no time to drain"},
		{"targetPort: postgres", "targetPort: postgresql", "service's port"},
		{"targetPort: api", "targetPort: admin", "offers the admin port"},
		{"    - name: api\n      port: 9434\n      targetPort: api\n", "", "service offers no API"},
		{"value: 0.0.0.0:9434", "value: 0.0.0.0:9435", "API's port"},
		{"          name: wirefence-tokens\n", "          name: tokens\n", "there is no secret tokens"},
		{"value: 230MiB", "value: 2GiB", "GOMEMLIMIT"},
		{"prometheus.io/port: \"9433\"", "prometheus.io/port: \"6433\"", "scrapes port 6433"},
		{"    app.kubernetes.io/component: proxy\n  # The admin", "    app.kubernetes.io/component: proxies\n  # The admin", "service selects"},
		{"wirefence:0.1.0", "wirefence:latest", "image"},
		{"          livenessProbe:\n            httpGet:\n              path: /livez\n              port: admin\n", "          livenessProbe:\n            httpGet:\n              path: /livez\n              port: postgres\n", "liveness probe"},
	},
	manifestDir + "/migrate.yaml": {
		{"restartPolicy: OnFailure", "restartPolicy: Never", "job doesn't restart"},
		{"args: [\"migrate\"", "args: [\"proxy\"", "runs proxy"},
		{", \"--wait=60s\"", "", "runs migrate"},
		{"name: wirefence-owner\n", "name: wirefence-issuer\n", "there is no secret wirefence-issuer"},
		{"  ttlSecondsAfterFinished: 600\n", "", "job stays for ever"},
	},
	manifestDir + "/networkpolicy.yaml": {
		{"              app.kubernetes.io/component: proxy\n        - podSelector", "              app.kubernetes.io/component: web\n        - podSelector", "doesn't admit the proxy"},
		{"          port: 5432", "          port: 6432", "port 5432"},
		{"    - from:\n", "    - {}\n    - from:\n", "admits others"},
		{"          port: 9434\n", "          port: 9433\n", "port 9433 admits"},
		{"policyTypes: [\"Ingress\"]", "policyTypes: [\"Egress\"]", "isn't of ingress"},
	},
}

func TestFaultsAreNoticed(t *testing.T) {
	t.Parallel()
	for file, all := range faults {
		text := read(t, file)
		for _, c := range all {
			t.Run(filepath.Base(file)+" "+c.noticed, func(t *testing.T) {
				t.Parallel()
				if !strings.Contains(text, c.old) {
					t.Fatalf("there is no %q to break", c.old)
				}
				found := examined[file](strings.Replace(text, c.old, c.replacement, 1))
				if !slices.ContainsFunc(found, func(m string) bool { return strings.Contains(m, c.noticed) }) {
					t.Errorf("not noticed: %s; reported: %q", c.noticed, found)
				}
			})
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
