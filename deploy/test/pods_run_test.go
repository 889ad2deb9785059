package deploy

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/wirefence/wirefence/internal/authority"
	"github.com/wirefence/wirefence/internal/servers"
)

// The proxies of the chart, of the plain manifests, of the overlay and of the policy run
// with the environment and the files that Kubernetes would give them: each is ready by its
// own probe, a sidecar leads, and the API grants a lease.
func TestPodsRun(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	postgresOnly, withTLS := mustRender(t, "postgres-only.yaml", "v1.36.0"), mustRender(t, "standalone-tls.yaml", "v1.36.0")
	sidecars := mustRender(t, "sidecar.yaml", "v1.36.0")
	injected, _, _ := mustCompile(t, manifest(t, manifestDir+"/injection.yaml")).admit(t, application(nil))
	sidecar := &injected.Spec.InitContainers[0]
	for name, value := range map[string]string{"WIREFENCE_UPSTREAM": "postgres://postgres:5432/?sslmode=disable", "WIREFENCE_STANDBY": "wait"} {
		sidecar.Env = append(sidecar.Env, corev1.EnvVar{Name: name, Value: value}) // of the ConfigMap
	}
	c.migrate(t, one[batchv1.Job](postgresOnly).Spec.Template.Spec, postgresOnly)
	c.migrate(t, one[batchv1.Job](manifest(t, manifestDir+"/migrate.yaml")).Spec.Template.Spec, nil)
	for name, p := range map[string]struct {
		pod     corev1.PodSpec
		objects []any // with secrets
	}{
		"chart, PostgreSQL only": {deployed(postgresOnly).Spec.Template.Spec, postgresOnly},
		"chart, TLS":             {deployed(withTLS).Spec.Template.Spec, withTLS},
		"chart, sidecar":         {deployed(sidecars).Spec.Template.Spec, sidecars},
		"plain, stand-alone":     {one[appsv1.Deployment](manifest(t, manifestDir+"/standalone.yaml")).Spec.Template.Spec, nil},
		"plain, sidecar":         {one[appsv1.Deployment](manifest(t, manifestDir+"/sidecar.yaml")).Spec.Template.Spec, nil},
		"overlay with TLS":       {patched[appsv1.Deployment](t, "standalone.yaml", "proxy.yaml").Spec.Template.Spec, nil},
		"sidecar of the policy":  {injected.Spec, nil},
	} {
		t.Run(name, func(t *testing.T) { c.run(t, p.pod, p.objects) })
	}
}

// cluster is the servers that the pods' connection strings lead to, and the secrets.
type cluster struct {
	ctx     context.Context
	binary  string
	secrets map[string]map[string]string
	servers []string // addresses as the manifests have them, and as they are
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	certificates := authority.New(t)
	pair, ca := certificates.Issue(t, "wirefence", "127.0.0.1"), read(t, certificates.CAFile)
	postgres, err := servers.StartPostgres(ctx, servers.PostgresConfig{CertFile: pair.CertFile, KeyFile: pair.KeyFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(postgres.Close)
	redis, err := servers.StartRedis(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(redis.Close)
	roles := exec.CommandContext(ctx, "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", "CREATE DATABASE app",
		"-c", "CREATE ROLE admin LOGIN SUPERUSER", "-c", "CREATE ROLE wirefence_issuer", "-c", "CREATE ROLE wirefence LOGIN IN ROLE wirefence_issuer", postgres.URL("postgres"))
	if out, err := roles.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
	tokens := "billing lease 3nqs0S1yJ5cQxGZ0vTtqj3mXw6q0cE2r1ZQkV9Wm0bX\n"
	return &cluster{ctx: ctx, binary: binary(t),
		servers: []string{"db-1.example.com:5432,db-2.example.com:5432", postgres.Addr(), "postgres:5432", postgres.Addr(), "rediss://:secret@redis.example.com:6379/0", redis.URL(), "redis:6379", redis.Addr()},
		secrets: map[string]map[string]string{
			"wirefence-issuer":     {"database-url": "postgres://wirefence@postgres:5432/app?sslmode=disable"},
			"wirefence-owner":      {"database-url": "postgres://admin@postgres:5432/app?sslmode=disable\n"},
			"wirefence-redis":      {"redis-url": "redis://redis:6379/0"},
			"wirefence-tokens":     {"tokens": tokens},
			"wirefence-users":      {"users.txt": `"app" "secret"`},
			"postgres-ca":          {"ca.crt": ca},
			"client-ca":            {"ca.crt": ca},
			"wirefence-tls":        {"tls.crt": read(t, pair.CertFile), "tls.key": read(t, pair.KeyFile)},
			"orders-wirefence-tls": {"tls.crt": read(t, pair.CertFile), "tls.key": read(t, pair.KeyFile)},
		}}
}

// binary builds wirefence once for all tests.
func binary(t *testing.T) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binaryDir string

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "wf-deploy-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "wirefence")
	return path, servers.BuildWirefence(context.Background(), "../..", path)
})

func TestMain(m *testing.M) {
	status := m.Run()
	if binaryDir != "" {
		os.RemoveAll(binaryDir)
	}
	os.Exit(status)
}

// process is a container's as a process on loopback: with its own ports, and its volumes
// in a folder.
func (c *cluster) process(t *testing.T, pod corev1.PodSpec, container corev1.Container, objects []any) *exec.Cmd {
	t.Helper()
	root := t.TempDir()
	rewrite := append([]string{"=/etc/wirefence", "=" + root + "/etc/wirefence"}, c.servers...)
	for _, port := range []string{"6433", "9433", "9434"} {
		free, err := servers.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		rewrite = append(rewrite, "0.0.0.0:"+port, fmt.Sprint("127.0.0.1:", free), "127.0.0.1:"+port, fmt.Sprint("127.0.0.1:", free))
	}
	replacer := strings.NewReplacer(rewrite...)
	for path, text := range c.files(t, pod, container, objects) {
		file := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(replacer.Replace(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(c.binary, container.Args...)
	for _, variable := range container.Env {
		if variable.Name == "WIREFENCE_LEASE" { // each pod has a lease of its own
			variable.Value += "@" + root
		}
		cmd.Env = append(cmd.Env, replacer.Replace(variable.Name+"="+variable.Value))
	}
	return cmd
}

// files are what a container's volumes hold, by their paths.
func (c *cluster) files(t *testing.T, pod corev1.PodSpec, container corev1.Container, objects []any) map[string]string {
	t.Helper()
	secrets := map[string]map[string]string{}
	for name, data := range c.secrets {
		secrets[name] = data
	}
	for _, object := range objects {
		if secret, ok := object.(*corev1.Secret); ok {
			secrets[secret.Name] = secret.StringData
		}
	}
	all := map[string]string{}
	for _, mount := range container.VolumeMounts {
		for _, volume := range pod.Volumes {
			if volume.Name != mount.Name {
				continue
			}
			for _, source := range sources(volume) {
				for _, item := range source.Items {
					all[filepath.Join(mount.MountPath, item.Path)] = secrets[source.Name][item.Key]
				}
			}
			if volume.Secret != nil {
				for key, text := range secrets[volume.Secret.SecretName] {
					all[filepath.Join(mount.MountPath, key)] = text
				}
			}
		}
	}
	return all
}

func (c *cluster) migrate(t *testing.T, pod corev1.PodSpec, objects []any) {
	t.Helper()
	if out, err := c.process(t, pod, pod.Containers[0], objects).CombinedOutput(); err != nil {
		t.Fatalf("migrate: %v\n%s", err, out)
	}
}

// run starts a pod's proxy, asks it as the kubelet and applications do, and ends it.
func (c *cluster) run(t *testing.T, pod corev1.PodSpec, objects []any) {
	container := pod.Containers[0]
	if len(pod.InitContainers) > 0 {
		container = pod.InitContainers[0]
	}
	cmd := c.process(t, pod, container, objects)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-over; err != nil || t.Failed() {
			t.Errorf("%v\n%s", err, log.String())
		}
	}()
	setting := func(name string) string {
		for _, variable := range cmd.Env {
			if value, is := strings.CutPrefix(variable, name+"="); is {
				return value
			}
		}
		return ""
	}
	probe := container.ReadinessProbe.HTTPGet
	scheme := strings.ToLower(string(probe.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	ready := scheme + "://" + setting("WIREFENCE_ADMIN_LISTEN") + probe.Path
	if setting("WIREFENCE_LEASE") != "" {
		ready += "?role=leader"
	}
	c.await(t, ready)
	if connection, err := net.Dial("tcp", setting("WIREFENCE_LISTEN")); err != nil {
		t.Error(err)
	} else {
		connection.Close()
	}
	if api := setting("WIREFENCE_API_LISTEN"); api != "" {
		url := scheme + "://" + api + "/v1/resources/" + strings.ReplaceAll(filepath.Base(t.Name()), ",", "") + "/acquire"
		if status := ask(c.ctx, "POST", url, "3nqs0S1yJ5cQxGZ0vTtqj3mXw6q0cE2r1ZQkV9Wm0bX"); status != http.StatusOK {
			t.Errorf("a lease over HTTP: %d", status)
		}
		if status := ask(c.ctx, "POST", url, "of-nobody-at-all-whom-it-knows"); status != http.StatusUnauthorized {
			t.Errorf("a lease with another token: %d", status)
		}
	}
}

// await asks an address until it answers 200.
func (c *cluster) await(t *testing.T, url string) {
	t.Helper()
	for status := 0; status != http.StatusOK; status = ask(c.ctx, "GET", url, "") {
		select {
		case <-c.ctx.Done():
			t.Fatalf("%s answers %d: %v", url, status, c.ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ask returns the status of an answer, 0 for none. As the kubelet, it doesn't look at
// certificates.
func ask(ctx context.Context, method, url, token string) int {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(`{"holder": "test"}`))
	if err != nil {
		return 0
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).Do(request)
	if err != nil {
		return 0
	}
	answer.Body.Close()
	return answer.StatusCode
}
