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

func TestComposeTakesItsEnvironment(t *testing.T) {
	t.Parallel()
	project, err := loadCompose(read(t, composeFile), types.Mapping{"WIREFENCE_MODE": "shadow", "ISSUER_PASSWORD": "another"})
	if err != nil {
		t.Fatal(err)
	}
	if set(project.Services["proxy"], "WIREFENCE_MODE") != "shadow" {
		t.Error("WIREFENCE_MODE is not passed on")
	}
	if !strings.Contains(set(project.Services["proxy"], "WIREFENCE_DATABASE_URL"), ":another@") {
		t.Error("ISSUER_PASSWORD is not passed on to the proxy")
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

func composeMisses(text string) (m misses) {
	project, err := loadCompose(text, nil)
	if err != nil {
		return misses{err.Error()}
	}
	names := slices.Sorted(maps.Keys(project.Services))
	m.want(slices.Equal(names, []string{"migrate", "postgres", "proxy", "redis", "tools"}), "services are %v", names)
	for name, command := range map[string]string{"postgres": "pg_isready", "redis": "redis-cli", "proxy": "/wirefence"} {
		check := project.Services[name].HealthCheck
		m.want(check != nil && !check.Disable && slices.Contains(check.Test, command), "%s has no health check of its own", name)
	}
	for name, service := range project.Services {
		m.want(service.Build == nil || service.PullPolicy == types.PullPolicyNever, "%s may run an image of a registry instead of one that is built here", name)
	}
	for _, w := range []struct{ who, whom, until string }{
		{"migrate", "postgres", types.ServiceConditionHealthy},
		{"proxy", "postgres", types.ServiceConditionHealthy},
		{"proxy", "redis", types.ServiceConditionHealthy},
		{"proxy", "migrate", types.ServiceConditionCompletedSuccessfully},
		{"tools", "proxy", types.ServiceConditionHealthy},
	} {
		m.want(project.Services[w.who].DependsOn[w.whom].Condition == w.until, "%s doesn't wait until %s is %s", w.who, w.whom, w.until)
	}
	// Applications take leases from Redis; the database is the proxy's alone.
	for name, network := range map[string]string{"postgres": "data", "redis": "front"} {
		service := project.Services[name]
		m.want(len(service.Ports) == 0, "%s publishes a port, and so a way round the proxy", name)
		m.want(slices.Equal(slices.Collect(maps.Keys(service.Networks)), []string{network}), "%s is on networks other than %s", name, network)
		m.want(slices.ContainsFunc(service.Volumes, func(v types.ServiceVolumeConfig) bool {
			return v.Type == types.VolumeTypeVolume && project.Volumes[v.Source].Name != ""
		}), "%s keeps its data in no named volume", name)
	}
	m.want(project.Networks["data"].Internal, "the network data has a way out")
	for _, name := range []string{"data", "front"} {
		_, on := project.Services["proxy"].Networks[name]
		m.want(on, "proxy is not on the network %s", name)
	}
	m.want(project.Services["migrate"].Restart == types.RestartPolicyNo, "migrate doesn't run just once")
	m.want(strings.HasPrefix(set(project.Services["proxy"], "WIREFENCE_DATABASE_URL"), "postgres://wirefence:"), "proxy connects as another role than the issuer's")
	m.add("", leaseMisses(project.Services["proxy"], project.Services["tools"]))
	for _, port := range project.Services["proxy"].Ports {
		m.want(port.HostIP == "127.0.0.1", "proxy's port %s is published beyond loopback", port.Published)
	}
	for _, command := range []string{"migrate", "proxy"} {
		service := project.Services[command]
		m.want(slices.Equal(service.Command, types.ShellCommand{command}), "%s runs another command", command)
		m.want(service.Build != nil && service.Build.Dockerfile == "deploy/Dockerfile", "%s is not built from deploy/Dockerfile", command)
		m.want(service.ReadOnly && slices.Contains(service.CapDrop, "ALL") && slices.Contains(service.SecurityOpt, "no-new-privileges:true"),
			"%s has more rights than it needs", command)
		env := map[string]string{}
		for name, value := range service.Environment {
			if value != nil {
				env[name] = *value
			}
		}
		m.add(command+": ", settingsMisses(command, env))
	}
	return m
}

// set is a setting of a service.
func set(service types.ServiceConfig, name string) string {
	if value := service.Environment[name]; value != nil {
		return *value
	}
	return ""
}

// leaseMisses says why leases can't be taken, over HTTP and by the tools.
func leaseMisses(proxy, tools types.ServiceConfig) (m misses) {
	for _, name := range []string{"WIREFENCE_REDIS_URL", "WIREFENCE_DATABASE_URL"} {
		m.want(set(proxy, name) != "" && set(proxy, name) == set(tools, name), "proxy and tools keep their leases in another store, or seal them in another database: %s", name)
	}
	tokens := set(proxy, "WIREFENCE_ADMIN_TOKEN_FILE")
	m.want(slices.ContainsFunc(proxy.Volumes, func(v types.ServiceVolumeConfig) bool { return v.Target == tokens && v.ReadOnly }), "proxy has no %s, or may write it", tokens)
	for _, name := range []string{"WIREFENCE_LISTEN", "WIREFENCE_ADMIN_LISTEN", "WIREFENCE_API_LISTEN"} {
		m.want(slices.ContainsFunc(proxy.Ports, func(p types.ServicePortConfig) bool { return set(proxy, name) == fmt.Sprint("0.0.0.0:", p.Target) }),
			"the port of %s is not published", name)
	}
	m.want(slices.Equal(tools.Profiles, []string{"tools"}), "tools is started with the others")
	m.want(tools.Build != nil && tools.Build.Dockerfile == "deploy/Dockerfile" && tools.Build.Target == "tools", "tools is not built from the stage tools")
	m.want(set(tools, "PGHOST") == "proxy" && ":"+set(tools, "PGPORT") == strings.TrimPrefix(set(proxy, "WIREFENCE_LISTEN"), "0.0.0.0"), "psql bypasses the proxy")
	return m
}
