package main

// named is how the values 0 and 1 of a gauge are shown.
func named(zero, one string) map[string]any {
	return map[string]any{"0": map[string]any{"text": zero}, "1": map[string]any{"text": one}}
}

// quantiles are the median and the 99th percentile of a histogram, by a label if one is
// named.
func quantiles(metric, label, window string) []query {
	by, legend := "le", ""
	if label != "" {
		by, legend = label+", le", "{{"+label+"}} "
	}
	buckets := "sum by (" + by + ") (rate(" + metric + `_bucket{job="$job"}[` + window + "]))"
	return []query{
		{"histogram_quantile(0.5, " + buckets + ")", legend + "p50"},
		{"histogram_quantile(0.99, " + buckets + ")", legend + "p99"},
	}
}

func fleet() dashboard {
	d := newDashboard("wirefence-fleet", "Wirefence: fleet", "All proxies of a database: leaders, refusals, and the cost of the fence.")
	d.row("Now")
	d.stat("Proxies", "Proxies that Prometheus can scrape.", "", nil, query{`count(wirefence_build_info{job="$job"})`, "proxies"})
	d.stat("Alerts", "Firing alerts of Wirefence.", "", nil, query{`count(ALERTS{alertname=~"Wirefence.+", alertstate="firing", job="$job"}) or vector(0)`, "alerts"})
	d.stat("No holder", "Resources of sidecars whose lease has no holder.", "", nil,
		query{`count(job_resource:wirefence_lease_held:sum{job="$job"} == 0) or vector(0)`, "resources"})
	d.stat("Lease store", "Down if any proxy's last call failed.", "", named("down", "up"), query{`min(wirefence_store_up{job="$job"})`, "store"})
	d.stat("Database", "Unreadable if any proxy can't read it.", "", named("unreadable", "up"), query{`min(wirefence_database_up{job="$job"})`, "database"})
	d.stat("Timeline", "It changes with a promotion or a restore.", "", nil, query{`job:wirefence_timeline:max{job="$job"}`, "timeline"})
	d.table("Leaders", "Sidecars that hold their lease.", `max by (resource, instance) (wirefence_lease_held{job="$job"}) == 1`)
	d.table("Upstream hosts", "1 for a primary, 0 for a standby; from proxies with several hosts.", `max by (host) (wirefence_upstream_primary{job="$job"})`)

	d.row("Resources")
	d.graph("Token", "The last token of each resource.", "", query{`max by (resource) (wirefence_resource_token{job="$job"})`, "{{resource}}"})
	d.graph("Handoffs per hour", "Changes from one holder to the next.", "",
		query{`max by (resource) (increase(wirefence_resource_handoffs_total{job="$job"}[1h]))`, "{{resource}}"})
	d.graph("Sessions ended by takeovers per hour", "Their transactions were rolled back.", "",
		query{`max by (resource) (increase(wirefence_resource_ended_sessions_total{job="$job"}[1h]))`, "{{resource}}"})
	d.graph("Duration of handoffs", "Duration of the seals of the last hour, including the wait for open transactions.", "s", quantiles("wirefence_handoff_seconds", "", "1h")...)
	d.graph("Writers", "Sessions that would delay a takeover.", "", query{`max by (resource) (wirefence_resource_writers{job="$job"})`, "{{resource}}"})
	d.graph("Held", "1 while any process holds the lease.", "", query{`max by (resource) (wirefence_resource_held{job="$job"})`, "{{resource}}"})

	d.row("Refusals")
	d.graph("Refused per minute", "By SQLSTATE.", "",
		query{`sum by (sqlstate, condition) (rate(wirefence_refusals_total{job="$job", shadow="false"}[$__rate_interval])) * 60`, "{{sqlstate}} {{condition}}"})
	d.graph("Passed in shadow mode per minute", "Statements that would have been refused.", "",
		query{`sum by (sqlstate, condition) (rate(wirefence_refusals_total{job="$job", shadow="true"}[$__rate_interval])) * 60`, "{{sqlstate}} {{condition}}"})
	d.graph("By resource per minute", "Refusals that name a resource, shadow mode included.", "",
		query{`sum by (resource, sqlstate) (rate(wirefence_resource_refusals_total{job="$job"}[$__rate_interval])) * 60`, "{{resource}} {{sqlstate}}"})
	d.graph("History: recorded and dropped", "Refusals per minute.", "",
		query{`sum(rate(wirefence_history_recorded_total{job="$job"}[$__rate_interval])) * 60`, "recorded"},
		query{`sum(rate(wirefence_history_dropped_total{job="$job"}[$__rate_interval])) * 60`, "dropped"})
	d.graph("History: waiting", "Different refusals that wait to be recorded.", "", query{`sum by (instance) (wirefence_history_waiting{job="$job"})`, "{{instance}}"})
	d.graph("History: never recorded", "Refusals and handoffs that the database could not record, in total.", "",
		query{`max(wirefence_history_unrecorded_refusals{job="$job"})`, "refusals"},
		query{`max(wirefence_history_missed_handoffs{job="$job"})`, "handoffs and similar"})

	d.row("Cost of the fence")
	d.graph("Groups by hold, check or nothing", "Share of groups of messages.", "percentunit",
		query{`sum by (under) (rate(wirefence_groups_total{job="$job"}[$__rate_interval])) / ignoring (under) group_left sum(rate(wirefence_groups_total{job="$job"}[$__rate_interval]))`, "{{under}}"})
	d.graph("Waiting for the fence", "For a check sent with a message, and for an exchange before it.", "s", quantiles("wirefence_fence_wait_seconds", "kind", "$__rate_interval")...)
	d.graph("Fenced groups", "Time at the server, for one in 16 groups.", "s", quantiles("wirefence_fenced_group_seconds", "", "$__rate_interval")...)
	d.graph("Checks and holds per second", "Requested by the proxies.", "ops", query{`sum by (instance) (rate(wirefence_checks_total{job="$job"}[$__rate_interval]))`, "{{instance}}"})

	d.row("The lease store")
	d.graph("Store: up", "1 if the last call was answered.", "", query{`wirefence_store_up{job="$job"}`, "{{instance}}"})
	d.graph("Store: latency", "Duration of calls.", "s", quantiles("wirefence_store_request_seconds", "operation", "$__rate_interval")...)
	d.graph("Store: errors per minute", "Calls that failed.", "", query{`sum by (operation) (rate(wirefence_store_errors_total{job="$job"}[$__rate_interval])) * 60`, "{{operation}}"})

	d.row("Sessions and traffic")
	d.graph("Sessions", "Clients that the proxies serve now.", "", query{`wirefence_sessions{job="$job"}`, "{{instance}}"},
		query{`sum(wirefence_standby_waiting{job="$job"})`, "waiting for the lease"})
	d.graph("Logins and rejections per second", "By reason of the rejection.", "ops",
		query{`sum(rate(wirefence_logins_total{job="$job"}[$__rate_interval]))`, "logins"},
		query{`sum by (reason) (rate(wirefence_rejected_connections_total{job="$job"}[$__rate_interval]))`, "rejected: {{reason}}"})
	d.graph("Duration of logins", "From accepting a client to the end of its login.", "s", quantiles("wirefence_login_seconds", "", "$__rate_interval")...)
	d.graph("Bytes", "Bytes of the protocol that the proxies read.", "Bps", query{`sum by (from) (rate(wirefence_read_bytes_total{job="$job"}[$__rate_interval]))`, "from {{from}}"})
	d.graph("Timeouts, cancel requests, protocol errors per minute", "Protocol errors should be 0.", "",
		query{`sum by (timeout) (rate(wirefence_timeouts_total{job="$job"}[$__rate_interval])) * 60`, "{{timeout}}"},
		query{`sum(rate(wirefence_cancel_requests_total{job="$job"}[$__rate_interval])) * 60`, "cancel requests"},
		query{`sum(rate(wirefence_protocol_errors_total{job="$job"}[$__rate_interval])) * 60`, "protocol errors"})
	d.graph("Leases over HTTP per minute", "By operation and status.", "",
		query{`sum by (operation, status) (rate(wirefence_api_requests_total{job="$job"}[$__rate_interval])) * 60`, "{{operation}} {{status}}"})

	d.row("Processes")
	d.graph("CPU", "Seconds of CPU time per second.", "percentunit", query{`rate(process_cpu_seconds_total{job="$job"}[$__rate_interval])`, "{{instance}}"})
	d.graph("Memory", "Resident memory.", "bytes", query{`process_resident_memory_bytes{job="$job"}`, "{{instance}}"})
	d.graph("Versions", "Proxies of each version.", "", query{`count by (version, goversion, schema) (wirefence_build_info{job="$job"})`, "{{version}}, {{goversion}}, schema {{schema}}"})
	return d
}

func resource() dashboard {
	d := newDashboard("wirefence-resource", "Wirefence: one resource", "One resource: its holder, the time of its grant, and refused statements.",
		byLabel("resource", "Resource", `wirefence_resource_token{job="$job"}`))
	one := `{job="$job", resource="$resource"}`
	d.row("Now")
	d.stat("Lease", "Held if any process holds it.", "", named("free", "held"), query{"max(wirefence_resource_held" + one + ")", "lease"})
	d.stat("Token", "The last token.", "", nil, query{"max(wirefence_resource_token" + one + ")", "token"})
	d.stat("Granted", "Time since the last token was recorded.", "s", nil, query{"time() - max(wirefence_resource_granted_timestamp_seconds" + one + ")", "ago"})
	d.stat("Writers", "Sessions that would delay a takeover.", "", nil, query{"max(wirefence_resource_writers" + one + ")", "writers"})
	d.stat("Leaders", "Sidecars that believe that they hold the lease. More than 1 is an error.", "", nil, query{"job_resource:wirefence_lease_held:sum" + one, "leaders"})
	d.stat("Handoffs", "In the last hour.", "", nil, query{"max(increase(wirefence_resource_handoffs_total" + one + "[1h]))", "handoffs"})

	d.row("Holders")
	d.graph("Holder", "1 for the sidecar that holds the lease.", "", query{"wirefence_lease_held" + one, "{{instance}}"})
	d.graph("Token over time", "It rises with each grant.", "", query{"max(wirefence_resource_token" + one + ")", "token"})
	d.graph("Held", "1 while any process holds the lease.", "", query{"max(wirefence_resource_held" + one + ")", "held"})
	d.graph("Handoffs and revocations per hour", "From the history.", "",
		query{"max(increase(wirefence_resource_handoffs_total" + one + "[1h]))", "handoffs"},
		query{"max(increase(wirefence_resource_revocations_total" + one + "[1h]))", "revocations"},
		query{"max(increase(wirefence_resource_ended_sessions_total" + one + "[1h]))", "sessions ended"})
	d.graph("Leases acquired and lost per hour", "By sidecar.", "",
		query{"sum by (instance, to) (increase(wirefence_lease_transitions_total" + one + "[1h]))", "{{instance}} to {{to}}"})
	d.graph("Failed acquires per minute", "Without those that failed because another process held the lease.", "",
		query{"sum by (instance) (rate(wirefence_lease_errors_total" + one + "[$__rate_interval])) * 60", "{{instance}}"})

	d.row("Writers and refusals")
	d.graph("Sessions that would delay a takeover", "By an open transaction or by a hold.", "", query{"max(wirefence_resource_writers" + one + ")", "writers"})
	d.graph("Refusals per minute", "By SQLSTATE; those in shadow mode passed.", "",
		query{`sum by (sqlstate) (rate(wirefence_resource_refusals_total{job="$job", resource="$resource", shadow="false"}[$__rate_interval])) * 60`, "{{sqlstate}}"},
		query{`sum by (sqlstate) (rate(wirefence_resource_refusals_total{job="$job", resource="$resource", shadow="true"}[$__rate_interval])) * 60`, "{{sqlstate}} in shadow mode"})
	return d
}
