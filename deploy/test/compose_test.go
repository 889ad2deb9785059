package deploy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
)

const composeFile = "../../docker-compose.yml"

func TestCompose(t *testing.T) {
	t.Parallel()
	project, err := loadCompose(read(t, composeFile), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, miss := range composeMisses(project, documented(t)) {
		t.Error(miss)
	}
}

func TestComposeTakesItsEnvironment(t *testing.T) {
	t.Parallel()
	project, err := loadCompose(read(t, composeFile), types.Mapping{"WIREFENCE_MODE": "shadow", "ISSUER_PASSWORD": "another"})
	if err != nil {
		t.Fatal(err)
	}
	env := project.Services["proxy"].Environment
	if mode := env["WIREFENCE_MODE"]; mode == nil || *mode != "shadow" {
		t.Error("WIREFENCE_MODE is not passed on")
	}
	if url := env["WIREFENCE_DATABASE_URL"]; url == nil || !strings.Contains(*url, ":another@") {
		t.Error("ISSUER_PASSWORD is not passed on to the proxy")
	}
}

func TestComposeBroken(t *testing.T) {
	t.Parallel()
	text, known := read(t, composeFile), documented(t)
	for _, c := range []struct{ old, replacement, noticed string }{
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
		{"profiles: [tools]", "profiles: []", "tools is started with the others"},
		{"      target: tools\n", "", "tools is not built from the stage tools"},
		{"PGHOST: proxy", "PGHOST: postgres", "psql bypasses the proxy"},
		{"postgres://wirefence:", "postgres://postgres:", "proxy connects as another role than the issuer's"},
		{"    networks: [data]\n", "    networks: [data]\n    ports: [\"127.0.0.1:5432:5432\"]\n", "postgres publishes a port"},
	} {
		t.Run(c.noticed, func(t *testing.T) {
			t.Parallel()
			project, err := loadCompose(broken(t, text, c.old, c.replacement), nil)
			if err != nil {
				expect(t, []string{err.Error()}, c.noticed)
				return
			}
			expect(t, composeMisses(project, known), c.noticed)
		})
	}
}

// loadCompose reads the text as `docker compose` would: by the schema, with
// unknown keys refused.
func loadCompose(text string, env types.Mapping) (*types.Project, error) {
	return loader.LoadWithContext(context.Background(), types.ConfigDetails{
		WorkingDir:  "../..",
		ConfigFiles: []types.ConfigFile{{Filename: composeFile, Content: []byte(text)}},
		Environment: env,
	}, func(o *loader.Options) { o.Profiles = []string{"*"} })
}

func composeMisses(project *types.Project, known map[string]bool) (misses []string) {
	miss := func(text string) { misses = append(misses, text) }
	if names := slices.Sorted(maps.Keys(project.Services)); !slices.Equal(names, []string{"migrate", "postgres", "proxy", "redis", "tools"}) {
		miss("services are " + strings.Join(names, ", "))
	}
	health := map[string]string{"postgres": "pg_isready", "redis": "redis-cli", "proxy": "/wirefence"}
	for name, command := range health {
		check := project.Services[name].HealthCheck
		if check == nil || check.Disable || !slices.Contains(check.Test, command) {
			miss(name + " has no health check of its own")
		}
	}
	type wait struct{ who, whom, until string }
	for _, w := range []wait{
		{"migrate", "postgres", types.ServiceConditionHealthy},
		{"proxy", "postgres", types.ServiceConditionHealthy},
		{"proxy", "redis", types.ServiceConditionHealthy},
		{"proxy", "migrate", types.ServiceConditionCompletedSuccessfully},
		{"tools", "proxy", types.ServiceConditionHealthy},
	} {
		if project.Services[w.who].DependsOn[w.whom].Condition != w.until {
			miss(w.who + " doesn't wait until " + w.whom + " is " + w.until)
		}
	}
	for _, name := range []string{"postgres", "redis"} {
		service := project.Services[name]
		if len(service.Ports) > 0 {
			miss(name + " publishes a port, and so a way round the proxy")
		}
		// Applications take leases from Redis; the database is the proxy's alone.
		want := map[string]string{"postgres": "data", "redis": "front"}[name]
		if networks := slices.Collect(maps.Keys(service.Networks)); !slices.Equal(networks, []string{want}) {
			miss(name + " is on networks other than " + want)
		}
		if !slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && project.Volumes[v.Source].Name != ""
		}) {
			miss(name + " keeps its data in no named volume")
		}
	}
	if !project.Networks["data"].Internal {
		miss("the network data has a way out")
	}
	for _, name := range []string{"data", "front"} {
		if _, on := project.Services["proxy"].Networks[name]; !on {
			miss("proxy is not on the network " + name)
		}
	}
	if project.Services["migrate"].Restart != types.RestartPolicyNo {
		miss("migrate doesn't run just once")
	}
	if url := project.Services["proxy"].Environment["WIREFENCE_DATABASE_URL"]; url == nil || !strings.HasPrefix(*url, "postgres://wirefence:") {
		miss("proxy connects as another role than the issuer's")
	}
	misses = append(misses, leaseMisses(project)...)
	for _, port := range project.Services["proxy"].Ports {
		if port.HostIP != "127.0.0.1" {
			miss("proxy's port " + port.Published + " is published beyond loopback")
		}
	}
	for _, command := range []string{"migrate", "proxy"} {
		service := project.Services[command]
		if !slices.Equal(service.Command, types.ShellCommand{command}) {
			miss(command + " runs another command")
		}
		if service.Build == nil || service.Build.Dockerfile != "deploy/Dockerfile" {
			miss(command + " is not built from deploy/Dockerfile")
		}
		if !service.ReadOnly || !slices.Contains(service.CapDrop, "ALL") || !slices.Contains(service.SecurityOpt, "no-new-privileges:true") {
			miss(command + " has more rights than it needs")
		}
		env := map[string]string{}
		for name, value := range service.Environment {
			if value != nil {
				env[name] = *value
			}
		}
		for _, m := range settingsMisses(command, env, known) {
			miss(command + ": " + m)
		}
	}
	return misses
}

// leaseMisses says why leases can't be taken, over HTTP and by the tools.
func leaseMisses(project *types.Project) (misses []string) {
	miss := func(text string) { misses = append(misses, text) }
	proxy, tools := project.Services["proxy"], project.Services["tools"]
	set := func(service types.ServiceConfig, name string) string {
		if value := service.Environment[name]; value != nil {
			return *value
		}
		return ""
	}
	for _, name := range []string{"WIREFENCE_REDIS_URL", "WIREFENCE_DATABASE_URL"} {
		if set(proxy, name) == "" || set(proxy, name) != set(tools, name) {
			miss("proxy and tools keep their leases in another store, or seal them in another database: " + name)
		}
	}
	tokens := set(proxy, "WIREFENCE_ADMIN_TOKEN_FILE")
	if !slices.ContainsFunc(proxy.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == tokens && v.ReadOnly }) {
		miss("proxy has no " + tokens + ", or may write it")
	}
	for _, name := range []string{"WIREFENCE_LISTEN", "WIREFENCE_ADMIN_LISTEN", "WIREFENCE_API_LISTEN"} {
		if !slices.ContainsFunc(proxy.Ports, func(p types.ServicePortConfig) bool { return set(proxy, name) == fmt.Sprint("0.0.0.0:", p.Target) }) {
			miss("the port of " + name + " is not published")
		}
	}
	if !slices.Equal(tools.Profiles, []string{"tools"}) {
		miss("tools is started with the others")
	}
	if tools.Build == nil || tools.Build.Dockerfile != "deploy/Dockerfile" || tools.Build.Target != "tools" {
		miss("tools is not built from the stage tools")
	}
	if set(tools, "PGHOST") != "proxy" || ":"+set(tools, "PGPORT") != strings.TrimPrefix(set(proxy, "WIREFENCE_LISTEN"), "0.0.0.0") {
		miss("psql bypasses the proxy")
	}
	return misses
}
