package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/wirefence/wirefence/internal/pages"
	"github.com/wirefence/wirefence/internal/servers"
)

// The commands of docs/howto/compose.md do what the page says. Without a Docker engine, the
// test starts the services' processes itself, with the environment and the commands of
// the compose file, and only addresses changed. A script named docker runs commands with
// the environment of their service.
func TestComposePage(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	project, err := loadCompose(read(t, composeFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &play{t: t, ctx: ctx, project: project, dir: t.TempDir()}
	p.startServers()
	p.job("migrate")
	p.serve("proxy")
	p.writeShim()
	refused := 0
	commands, out := "", ""
	for _, block := range pages.Blocks(read(t, "../../docs/howto/compose.md")) {
		if block.Language == "" { // what the commands before it print
			for line := range strings.Lines(block.Text) {
				if !strings.Contains(out, strings.TrimRight(line, "\n")) {
					t.Errorf("%s\ndoesn't print %q, but:\n%s", commands, line, out)
				}
			}
		}
		if block.Language != "sh" {
			continue
		}
		commands, out = block.Text, p.play(block.Text)
		if strings.Contains(out, "ERROR:  WF001") {
			refused++
		} else if strings.Contains(out, "ERROR") || strings.Contains(out, "rror:") {
			t.Errorf("%s\nfails:\n%s", commands, out)
		}
	}
	if refused != 1 {
		t.Errorf("%d zombies were refused", refused)
	}
}

// play is the services of the compose file as processes on loopback.
type play struct {
	t       *testing.T
	ctx     context.Context
	project *types.Project
	dir     string

	binary    string
	addresses *strings.Replacer // of services, as the compose file has them
}

// startServers starts PostgreSQL, as its image does with the folder of scripts, and
// Redis, and builds the binary.
func (p *play) startServers() {
	p.t.Helper()
	postgres, err := servers.StartPostgres(p.ctx, servers.PostgresConfig{
		HBA: "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
	})
	p.check(err)
	p.t.Cleanup(postgres.Close)
	redis, err := servers.StartRedis(p.ctx)
	p.check(err)
	p.t.Cleanup(redis.Close)
	roles := exec.CommandContext(p.ctx, "bash", "../compose/init-roles.sh")
	roles.Env = append(p.environment("postgres"), "POSTGRES_USER=postgres", "PGHOST="+postgres.SocketDir, fmt.Sprint("PGPORT=", postgres.Port))
	if out, err := roles.CombinedOutput(); err != nil {
		p.t.Fatalf("init-roles.sh: %v\n%s", err, out)
	}
	rewrite := []string{"postgres:5432", postgres.Addr(), "redis:6379", redis.Addr(), "/admin-tokens", p.bound("/admin-tokens")}
	for _, port := range []string{"6433", "9433", "9434"} {
		free, err := servers.FreePort()
		p.check(err)
		rewrite = append(rewrite, "0.0.0.0:"+port, fmt.Sprint("127.0.0.1:", free), "127.0.0.1:"+port, fmt.Sprint("127.0.0.1:", free))
		if port == "6433" {
			rewrite = append(rewrite, "PGHOST=proxy", "PGHOST=127.0.0.1", "PGPORT="+port, fmt.Sprint("PGPORT=", free))
		}
	}
	p.addresses = strings.NewReplacer(rewrite...)
	p.binary = filepath.Join(p.dir, "wirefence")
	p.check(os.Symlink(binary(p.t), p.binary))
}

// bound is the file on the host that the proxy has at a path.
func (p *play) bound(target string) string {
	for _, volume := range p.project.Services["proxy"].Volumes {
		if volume.Target == target {
			path, err := filepath.Abs(volume.Source)
			p.check(err)
			return path
		}
	}
	p.t.Fatalf("proxy has no %s", target)
	return ""
}

// environment is what a service's processes get, without that of the test.
func (p *play) environment(service string) []string {
	env := []string{"PATH=" + p.dir + ":" + os.Getenv("PATH"), "HOME=" + p.dir}
	for name, value := range p.project.Services[service].Environment {
		if value != nil {
			env = append(env, name+"="+*value)
		}
	}
	if p.addresses != nil {
		for i := range env {
			env[i] = p.addresses.Replace(env[i])
		}
	}
	return env
}

// command is `wirefence` with a service's command and environment.
func (p *play) command(service string) *exec.Cmd {
	cmd := exec.Command(p.binary, p.project.Services[service].Command...)
	cmd.Env = p.environment(service)
	return cmd
}

// job runs a service that ends by itself.
func (p *play) job(service string) {
	p.t.Helper()
	if out, err := p.command(service).CombinedOutput(); err != nil {
		p.t.Fatalf("%s: %v\n%s", service, err, out)
	}
}

// serve starts the proxy and waits for its health check.
func (p *play) serve(service string) {
	p.t.Helper()
	var log bytes.Buffer
	cmd := p.command(service)
	cmd.Stdout, cmd.Stderr = &log, &log
	p.check(cmd.Start())
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := cmd.Wait(); err != nil {
			p.t.Errorf("%s: %v\n%s", service, err, log.String())
		}
	}()
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-over
	})
	for {
		health := exec.CommandContext(p.ctx, p.binary, p.project.Services[service].HealthCheck.Test[2:]...)
		health.Env = p.environment(service)
		err := health.Run()
		if err == nil {
			return
		}
		select {
		case <-over:
			p.t.FailNow()
		case <-p.ctx.Done():
			p.t.Fatalf("%s doesn't get healthy: %v", service, errors.Join(p.ctx.Err(), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// writeShim writes a script docker, which knows `docker compose run` and takes up and
// down for done.
func (p *play) writeShim() {
	p.t.Helper()
	var settings strings.Builder
	for _, setting := range p.environment("tools") {
		fmt.Fprintf(&settings, "%q\n", setting)
	}
	script := `#!/usr/bin/env bash
set -euo pipefail
[ "$1" = compose ] || exit 99
case $2 in
  up | down) exit 0 ;;
  run) shift 2 ;;
  *) exit 98 ;;
esac
more=()
while [ $# -gt 0 ]; do
  case $1 in
    --rm) shift ;;
    --env) more+=("$2"); shift 2 ;;
    tools) shift; break ;;
    *) exit 97 ;;
  esac
done
exec env -i ` + strings.ReplaceAll(settings.String(), "\n", " ") + ` "${more[@]}" "$@"
`
	p.check(os.WriteFile(filepath.Join(p.dir, "docker"), []byte(script), 0o700))
}

// play runs commands of the page as a shell would, and returns what they print.
func (p *play) play(commands string) string {
	cmd := exec.CommandContext(p.ctx, "bash", "-c", p.addresses.Replace(commands))
	cmd.Env = p.environment("")
	out, err := cmd.CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 90 {
		p.t.Errorf("%s\nends with %v:\n%s", commands, err, out)
	}
	return string(out)
}

func (p *play) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}
