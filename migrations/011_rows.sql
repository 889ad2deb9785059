-- Row fences: job(17)=1763900000000000 says that row 17 of the class job runs under this claim,
-- until the transaction ends. The row judges that, instead of resource_locks: a check finds it
-- by its key, compares its claim, and locks it FOR SHARE. A later take of the job updates the
-- row, so it waits for the transaction, or skips the row.
SET LOCAL search_path = pg_catalog, pg_temp;

-- key_form returns a regular expression for the keys of a class. One that is plain matches no
-- key that has to be decoded, or may be too large.
CREATE FUNCTION wirefence.key_form(kinds text[], plain boolean) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT string_agg(CASE k.kind WHEN 'integer' THEN '(0|-?[1-9][0-9]{0,' || CASE WHEN plain THEN '17' ELSE '18' END || '})'
                                  WHEN 'uuid' THEN '[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'
                                  ELSE CASE WHEN plain THEN '[A-Za-z0-9_./-]{1,255}' ELSE '[^:,]+' END END, ':' ORDER BY k.place)
    FROM unnest(kinds) WITH ORDINALITY AS k(kind, place)
$$;

-- row_classes has the declared classes. name keeps the name of the table, as in
-- wirefence.guards.
CREATE TABLE wirefence.row_classes (
    class       text COLLATE "C" PRIMARY KEY,
    relation    regclass NOT NULL,
    name        text NOT NULL,
    judge       text NOT NULL,
    key         text[] NOT NULL,
    kinds       text[] NOT NULL,
    claim       text NOT NULL,
    condition   text NOT NULL,
    mode        text COLLATE "C" NOT NULL CHECK (mode IN ('enforce', 'shadow')),
    attributes  smallint[] NOT NULL,
    shape       text NOT NULL,
    declared_by text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    form        text COLLATE "C" GENERATED ALWAYS AS (
                    '^' || class || '[(]' || wirefence.key_form(kinds, true) || '[)]=(0|-?[1-9][0-9]{0,17})$') STORED
);

COMMENT ON TABLE wirefence.row_classes IS 'The classes of rows that judge their own claims. wirefence.rows() compares them with their tables.';
COMMENT ON COLUMN wirefence.row_classes.judge IS 'The function that judges rows, in the schema of the table. The owner of the table owns it; see judge_source.';
COMMENT ON COLUMN wirefence.row_classes.kinds IS 'For each column of the key, how a fence spells it: integer, uuid or text.';
COMMENT ON COLUMN wirefence.row_classes.attributes IS 'The numbers of the columns of the key, and of those that the claim and the condition name.';
COMMENT ON COLUMN wirefence.row_classes.shape IS 'What row_shape returned when the class was declared.';
COMMENT ON COLUMN wirefence.row_classes.form IS 'A regular expression for the fence of one row that needs no decoding.';

GRANT SELECT ON wirefence.row_classes TO wirefence_issuer;

-- split_rows separates the pairs of rows from the rest of a fence, which is null if there is
-- none. The rows are sorted by name. One expression for the whole text costs a tenth of one for
-- each pair.
CREATE FUNCTION wirefence.split_rows(fence text, OUT rest text, OUT names text[], OUT claims bigint[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    form CONSTANT text := '[a-z_][a-z0-9_]*[(]([A-Za-z0-9_./-]|%[0-9A-F][0-9A-F])+(:([A-Za-z0-9_./-]|%[0-9A-F][0-9A-F])+)*[)]=(0|-?[1-9][0-9]*)';
    wrong text;
BEGIN
    IF octet_length(fence) > 1048576 THEN
        PERFORM wirefence.refuse_malformed('it has ' || octet_length(fence) || ' bytes, at most 1048576 are allowed');
    END IF;
    IF fence COLLATE "C" !~ ('^' || form || '(,' || form || ')*$') THEN
        SELECT string_agg(i.item, ',') FILTER (WHERE strpos(i.item, '(') = 0), string_agg(i.item, ',') FILTER (WHERE strpos(i.item, '(') > 0)
        INTO rest, fence FROM string_to_table(fence, ',') AS i(item);
        IF fence COLLATE "C" !~ ('^' || form || '(,' || form || ')*$') THEN
            PERFORM wirefence.refuse_malformed('a pair of a row is not of the form class(key)=claim');
        END IF;
    END IF;
    SELECT CASE
        WHEN fence ~ '%(00|2[DEF]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A])' THEN 'a row''s key is not percent-encoded as it should be'
        WHEN fence ~ '=-?[0-9]{19}' AND EXISTS (SELECT FROM string_to_table(fence, ',') AS i(item) WHERE split_part(i.item, '=', 2)::numeric
            NOT BETWEEN -9223372036854775808 AND 9223372036854775807) THEN 'a claim is not a decimal number of 64 bits'
        WHEN length(fence) > 64 AND EXISTS (SELECT FROM string_to_table(fence, ',') AS i(item) WHERE strpos(i.item, '(') > 64) THEN 'the name of a class of rows has more than 63 bytes'
        WHEN length(fence) > 1024 AND EXISTS (SELECT FROM string_to_table(fence, ',') AS i(item) WHERE strpos(i.item, ')') - strpos(i.item, '(') > 1025)
            THEN 'the key of a row has more than 1024 bytes' END
    INTO wrong;
    IF fence ~ '%[89A-F]' THEN
        PERFORM wirefence.decode_text(m.part[1], 'the key of a row') FROM regexp_matches(fence, '[(:]([^:)]*%[89A-F][^:)]*)', 'g') AS m(part);
    END IF;
    IF wrong IS NULL THEN
        SELECT array_agg(p.name), array_agg(p.claim), CASE WHEN count(DISTINCT p.name) < count(*) THEN 'a row has two claims' END
        INTO names, claims, wrong
        FROM (SELECT DISTINCT split_part(i.item, '=', 1) COLLATE "C" AS name, split_part(i.item, '=', 2)::bigint AS claim
              FROM string_to_table(fence, ',') AS i(item) ORDER BY 1, 2) AS p;
    END IF;
    IF cardinality(names) > 10000 THEN
        wrong := 'it names ' || cardinality(names) || ' rows, at most 10000 are allowed';
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM wirefence.refuse_malformed(wrong);
    END IF;
END
$$;

-- decode_keys returns the values of one column of the keys. Only texts are percent-encoded.
CREATE FUNCTION wirefence.decode_keys(keys text[], place integer, columns integer, kind text) RETURNS text[]
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF columns > 1 THEN
        keys := ARRAY(SELECT split_part(u.key, ':', place) FROM unnest(keys) WITH ORDINALITY AS u(key, at) ORDER BY u.at);
    END IF;
    IF kind = 'text' AND strpos(array_to_string(keys, ''), '%') > 0 THEN
        keys := ARRAY(SELECT wirefence.decode_text(u.key, 'the key of a row') FROM unnest(keys) WITH ORDINALITY AS u(key, at) ORDER BY u.at);
    END IF;
    RETURN keys;
END
$$;

-- encode_key returns the text of a column as a fence spells it in a key.
CREATE FUNCTION wirefence.encode_key(value text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN value COLLATE "C" ~ '^[A-Za-z0-9_./-]+$' THEN value ELSE
        (SELECT string_agg(CASE WHEN m.part[1] COLLATE "C" ~ '^[A-Za-z0-9_./-]+$' THEN m.part[1]
                                ELSE regexp_replace(upper(encode(convert_to(m.part[1], 'UTF8'), 'hex')), '(..)', '%\1', 'g') END, '' ORDER BY m.at)
         FROM regexp_matches(value COLLATE "C", '[A-Za-z0-9_./-]+|[^A-Za-z0-9_./-]+', 'g') WITH ORDINALITY AS m(part, at)) END
$$;

-- judge_version returns what changes with each change of a judge, null if the function has not
-- the rights of the owner of the table, or does not return what a judge returns. wirefence_owner
-- calls no other: one with the rights of its caller, or whose result needs a cast, would run
-- its owner's code with these. In a snapshot the row that it sees must be the newest one.
CREATE FUNCTION wirefence.judge_version(judge oid, target regclass) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT concat(p.ctid, p.xmin) FROM pg_proc AS p JOIN pg_class AS c ON c.relowner = p.proowner
            WHERE p.oid = judge AND c.oid = target AND p.prosecdef AND currtid2('pg_catalog.pg_proc', p.ctid) = p.ctid
              AND p.proallargtypes = ARRAY['text[]'::regtype, 'bigint[]'::regtype, 'boolean'::regtype, 'boolean'::regtype,
                                           'integer'::regtype, 'text'::regtype, 'boolean'::regtype]::oid[]);
END
$$;

-- run_judge lets the judge of a class judge rows. place is 0 if there is no such judge. If the
-- judge was changed meanwhile, or has changed the search path, whatever it has done is undone.
--
-- The judge is the only foreign code that wirefence_owner calls. With another search path this
-- and all callers would resolve their operators anew, to functions of the judge's choice. And
-- one that was changed between the first look and the call may have had the rights of
-- wirefence_owner: no function that it could replace takes part in the second look.
CREATE FUNCTION wirefence.run_judge(judge text, target regclass, keys text[], claims bigint[], locking boolean, snapshot boolean,
    OUT place integer, OUT reason text, OUT in_subtransaction boolean)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    path CONSTANT text := current_setting('search_path');
    number CONSTANT oid := to_regprocedure(judge);
    version CONSTANT text := wirefence.judge_version(number, target);
BEGIN
    IF version IS NULL THEN
        place := 0;
        RETURN;
    END IF;
    EXECUTE 'SELECT * FROM ' || substring(judge FROM '(.*)[(]') || '($1, $2, $3, $4)' INTO place, reason, in_subtransaction
    USING keys, claims, locking, snapshot;
    IF pg_catalog.current_setting('search_path') OPERATOR(pg_catalog.<>) path THEN
        RAISE insufficient_privilege USING MESSAGE = 'the judge of a class of rows has changed the search path';
    ELSIF NOT EXISTS (SELECT FROM pg_catalog.pg_proc AS p WHERE p.oid OPERATOR(pg_catalog.=) number
                      AND pg_catalog.concat(p.ctid, p.xmin) OPERATOR(pg_catalog.=) version
                      AND pg_catalog.currtid2('pg_catalog.pg_proc', p.ctid) OPERATOR(pg_catalog.=) p.ctid) THEN
        RAISE serialization_failure USING MESSAGE = 'could not serialize access to a fenced resource',
            DETAIL = pg_catalog.format('The function %s was changed while it judged.', judge), HINT = 'Retry the transaction.';
    END IF;
END
$$;

-- row_shape returns what a class relies on: the name of the table, that no policy hides rows
-- from its owner, its columns, and that a unique index makes the key that of one row. A check
-- compares it with what it was.
CREATE FUNCTION wirefence.row_shape(relation regclass, attributes smallint[], keys integer) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN concat(relation, CASE WHEN wirefence.is_distributed(relation) THEN ' distributed ' END, (SELECT c.relforcerowsecurity FROM pg_class AS c WHERE c.oid = relation),
        ARRAY(SELECT concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull)
                                  FROM pg_attribute AS a WHERE a.attrelid = relation AND a.attnum = ANY (attributes) ORDER BY a.attnum),
        EXISTS (SELECT FROM pg_index AS i
                WHERE i.indrelid = relation AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
                  AND i.indnkeyatts = keys AND i.indkey[0:keys - 1] <@ attributes[1:keys]));
END
$$;

-- refuse_rows raises WF001 for a row, whose reason the judge gave, and WF008 for a class. It
-- does not tell the present claim: with that a late worker could go on.
CREATE FUNCTION wirefence.refuse_rows(state text, name text, claim bigint, reason text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class CONSTANT text := split_part(name, '(', 1);
BEGIN
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal(state, class || '()'),
        ERRCODE = state,
        MESSAGE = CASE state WHEN 'WF001' THEN 'stale claim for row ' || name
            WHEN 'WF008' THEN 'unknown class of rows ' || wirefence.quote_name(class)
            ELSE 'cannot judge row ' || name || ' in a READ ONLY transaction with a snapshot' END,
        DETAIL = CASE state WHEN 'WF001' THEN 'Row ' || name || ': presented claim ' || claim || ', but ' || reason || '.'
            WHEN 'WF008' THEN 'Row ' || name || ': ' || reason || '.'
            ELSE 'Row ' || name || ': the snapshot may be older than a take of the row, which can be told only by locking it.' END,
        HINT = CASE state WHEN 'WF001' THEN 'Stop this work: it was taken by another worker, ended, or cancelled. A retry with the same claim can never succeed.'
            WHEN 'WF008' THEN 'The owner of the table declares its rows: wirefence rows declare ' || class || ' --table TABLE --key COLUMN --claim EXPRESSION --while CONDITION'
            ELSE 'Use READ COMMITTED, or READ WRITE.' END;
END
$$;

-- rows_code returns the code that proves that this session's transaction number has checked a
-- list of pairs; transaction may be that of a subtransaction. The number of the transaction
-- itself keeps the code out of later ones, also while a prepared one goes on. Only
-- wirefence_owner has the secret. PostgreSQL inlines it.
CREATE FUNCTION wirefence.rows_code(secret text, transaction text, list text) RETURNS text
LANGUAGE sql STABLE
RETURN encode(sha256(convert_to(concat_ws(' ', secret, 'rows', pg_backend_pid(), pg_current_xact_id_if_assigned(), transaction, list), 'UTF8')), 'hex');

-- checked_rows returns the pairs that this transaction was checked for, with commas around
-- each. A pair that was locked stays good until the transaction ends, whatever the transaction
-- itself does to the row: it may complete or delete the job, and go on.
--
-- The setting wirefence.rows has a code without which nobody can write it, the number of the
-- transaction or subtransaction that locked the rows, and the pairs. ROLLBACK TO takes the
-- setting back, as it takes the locks; and if a client writes the former value back, the number
-- is that of a subtransaction that was rolled back.
CREATE FUNCTION wirefence.checked_rows() RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept CONSTANT text[] := string_to_array(current_setting('wirefence.rows', true), ' ');
    secret CONSTANT text := (SELECT s.secret FROM wirefence.secret AS s);
BEGIN
    IF kept[1] = wirefence.rows_code(secret, kept[2], kept[3]) THEN
        RETURN CASE WHEN pg_xact_status(kept[2]::xid8) = 'in progress' THEN kept[3] ELSE '' END;
    END IF;
    RETURN '';
END
$$;

-- note_rows adds pairs that were checked and locked to those of checked_rows. in_subtransaction
-- says that a row shows another number than that of the transaction, or several: then the last
-- number that the session has taken is that of the subtransaction, or of one in it. A later
-- number of pairs that were known stays: it ends with what locked these.
CREATE FUNCTION wirefence.note_rows(known text, added text, in_subtransaction boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    list text := concat(coalesce(nullif(known, ''), ','), added, ',');
    transaction bigint := pg_current_xact_id()::text::bigint;
    secret CONSTANT text := (SELECT s.secret FROM wirefence.secret AS s);
BEGIN
    IF in_subtransaction THEN
        SELECT transaction + age(pg_current_xact_id()::xid) - min(age(l.transactionid)) INTO transaction
        FROM pg_locks AS l WHERE l.locktype = 'transactionid' AND l.pid = pg_backend_pid() AND l.mode = 'ExclusiveLock';
    END IF;
    IF known <> '' THEN
        transaction := greatest(transaction, split_part(current_setting('wirefence.rows'), ' ', 2)::bigint);
    END IF;
    list := set_config('wirefence.rows', concat_ws(' ', wirefence.rows_code(secret, transaction::text, list), transaction, list), true);
END
$$;

-- judge_class judges rows of one class, and locks them unless the transaction is READ ONLY, or
-- in shadow mode, in which it returns the refusal that it would raise.
CREATE FUNCTION wirefence.judge_class(class text, names text[], claims bigint[], shadow boolean, OUT in_subtransaction boolean, OUT refusal text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    snapshot CONSTANT boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    writable CONSTANT boolean := current_setting('transaction_read_only') = 'off';
    keys text[];
    form text;
    declared wirefence.row_classes;
    place integer := 1;
    reason text;
    state text := 'WF001';
BEGIN
    SELECT * INTO declared FROM wirefence.row_classes AS r WHERE r.class = judge_class.class;
    shadow := shadow OR declared.mode IS NOT DISTINCT FROM 'shadow';
    IF declared.class IS NULL THEN
        state := 'WF008';
        reason := 'the class was not declared';
    ELSIF declared.shape <> wirefence.row_shape(declared.relation, declared.attributes, cardinality(declared.key)) THEN
        state := 'WF008';
        reason := 'table ' || declared.name || ' has changed since the class was declared';
    ELSIF snapshot AND NOT writable THEN
        state := 'WF006';
    ELSE
        keys := string_to_array(substr(array_to_string(names, ',') || ',', length(class) + 2), '),' || class || '(');
        keys[cardinality(keys)] := left(keys[cardinality(keys)], -2);
        form := wirefence.key_form(declared.kinds, false);
        IF array_to_string(keys, ',') COLLATE "C" !~ ('^' || form || '(,' || form || ')*$')
           OR 'integer' = ANY (declared.kinds) AND EXISTS (
               SELECT FROM unnest(keys) AS u(key), unnest(string_to_array(u.key, ':'), declared.kinds) AS p(part, kind)
               WHERE p.kind = 'integer' AND length(p.part) > 18 AND p.part::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807) THEN
            PERFORM wirefence.refuse_malformed('a key of class ' || class || ' is not of the form ' || array_to_string(declared.kinds, ':'));
        END IF;
        SELECT array_agg(u.value) INTO keys
        FROM unnest(declared.kinds) WITH ORDINALITY AS k(kind, at), unnest(wirefence.decode_keys(keys, k.at::integer, cardinality(declared.kinds), k.kind)) AS u(value);
        SELECT j.place, j.reason, j.in_subtransaction INTO place, reason, in_subtransaction
        FROM wirefence.run_judge(declared.judge, declared.relation, keys, claims, writable AND NOT shadow, snapshot) AS j;
        IF place = 0 THEN
            state := 'WF008';
            reason := 'the function that judges its class has gone, or has not the rights of the owner of table ' || declared.name || ' alone';
            place := 1;
        END IF;
    END IF;
    IF place IS NULL THEN
        RETURN;
    ELSIF state = 'WF001' AND (reason = '' OR pg_is_in_recovery()) THEN
        RAISE serialization_failure USING
            MESSAGE = 'could not serialize access to a fenced resource',
            DETAIL = 'Row ' || names[place] || CASE reason WHEN '' THEN ' was replaced during the check.' ELSE ' on this standby is not under the claim, or not yet.' END,
            HINT = 'Retry the transaction' || CASE reason WHEN '' THEN '.' ELSE ', or run it on the primary.' END;
    ELSIF NOT shadow THEN
        PERFORM wirefence.refuse_rows(state, names[place], claims[place], reason);
    END IF;
    refusal := wirefence.describe_rows(state, names[place], claims[place], reason);
    IF declared.mode = 'shadow' THEN
        PERFORM wirefence.note('shadow', state, class || '()', NULL, NULL, NULL, NULL, NULL);
    END IF;
END
$$;

-- describe_rows is describe_refusal for rows.
CREATE FUNCTION wirefence.describe_rows(state text, name text, claim bigint, reason text) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    message text;
    detail text;
BEGIN
    PERFORM wirefence.suppress_counting(true), wirefence.refuse_rows(state, name, claim, reason);
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ': ' || message || '. ' || detail;
END
$$;

-- judge_rows judges pairs of rows, one class after another. It returns the first refusal of a
-- class in shadow mode.
CREATE FUNCTION wirefence.judge_rows(names text[], claims bigint[], shadow boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known CONSTANT text := wirefence.checked_rows();
    first_refusal text;
    judged record;
    checked record;
    added text;
    in_subtransaction boolean := false;
BEGIN
    FOR judged IN
        SELECT split_part(u.name, '(', 1) COLLATE "C" AS class, array_agg(u.name ORDER BY u.at) AS names, array_agg(u.claim ORDER BY u.at) AS claims
        FROM unnest(names, claims) WITH ORDINALITY AS u(name, claim, at)
        WHERE known = '' OR concat(u.name, '=', u.claim) NOT IN (SELECT s.pair FROM string_to_table(known, ',') AS s(pair))
        GROUP BY 1 ORDER BY 1
    LOOP
        checked := wirefence.judge_class(judged.class, judged.names, judged.claims, shadow);
        first_refusal := coalesce(first_refusal, checked.refusal);
        IF checked.in_subtransaction IS NOT NULL THEN
            in_subtransaction := in_subtransaction OR checked.in_subtransaction;
            added := concat_ws(',', added, (SELECT string_agg(concat(u.name, '=', u.claim), ',') FROM unnest(judged.names, judged.claims) AS u(name, claim)));
        END IF;
    END LOOP;
    IF added IS NOT NULL THEN
        PERFORM wirefence.note_rows(known, added, in_subtransaction);
    END IF;
    RETURN first_refusal;
END
$$;

-- judge_name returns the name of a class's judge, in the schema of its table.
CREATE FUNCTION wirefence.judge_name(target regclass, class text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format('%I.%I', n.nspname, 'wirefence_judge_' || CASE WHEN length(class) > 47 THEN md5(class) ELSE class END)
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = target
$$;

-- check_row checks the frequent cases, a fence of one row, and one that was checked before.
-- False: check_all has to decide.
CREATE FUNCTION wirefence.check_row(fence text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    declared wirefence.row_classes;
    judged record;
BEGIN
    IF current_setting('wirefence.rows', true) <> '' THEN
        RETURN strpos(wirefence.checked_rows(), concat(',', fence, ',')) > 0;
    END IF;
    SELECT * INTO declared FROM wirefence.row_classes AS r
    WHERE r.class = split_part(fence, '(', 1) AND fence ~ r.form AND r.mode = 'enforce'
      AND current_setting('transaction_isolation') = 'read committed' AND current_setting('transaction_read_only') = 'off'
      AND r.shape = wirefence.row_shape(r.relation, r.attributes, cardinality(r.key));
    IF FOUND THEN
        judged := wirefence.run_judge(declared.judge, declared.relation, string_to_array(split_part(split_part(fence, '(', 2), ')', 1), ':'),
                                      ARRAY[split_part(fence, '=', 2)::bigint], true, false);
        IF judged.place IS NULL THEN
            PERFORM wirefence.note_rows('', fence, judged.in_subtransaction);
            RETURN true;
        END IF;
    END IF;
    RETURN false;
END
$$;

-- judge_source returns the function that judges the rows of a class, which the owner of the
-- table owns and which only wirefence_owner may call: the claim and the condition are the
-- owner's code, and the table is the owner's. Its arguments are the keys, column after column;
-- the claims; whether to lock the rows; and whether the transaction keeps its snapshot.
--
-- place is that of the first pair that finds no row, null if all do. Each pair is looked up by
-- itself: to count the rows that were found would let one stand in for another.
-- in_subtransaction is null unless all rows are locked.
--
-- In a snapshot the row of such a pair is locked, too. That raises 40001 if the row has changed
-- since, as by the take that the claim comes from. An empty reason says that there is a row
-- that fits by now: it took the place of one that was deleted meanwhile.
CREATE FUNCTION wirefence.judge_source(target regclass, class text, key text[], kinds text[], claim text, condition text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT format($function$
CREATE OR REPLACE FUNCTION %1$s(wirefence_keys text[], wirefence_claims bigint[], wirefence_locking boolean, wirefence_snapshot boolean,
    OUT wirefence_place integer, OUT wirefence_reason text, OUT wirefence_in_subtransaction boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $judge$
#variable_conflict use_column
DECLARE
    wirefence_count CONSTANT integer := cardinality($2);
BEGIN
    IF wirefence_count = 1 AND $3 THEN -- without the functions of arrays, which cost ten times as much
        PERFORM FROM %4$s AS t WHERE %8$s AND %6$s = $2[1] AND %7$s FOR SHARE;
        IF FOUND THEN
            wirefence_in_subtransaction := (SELECT t.xmax <> pg_current_xact_id()::xid FROM %4$s AS t WHERE %8$s);
            RETURN;
        END IF;
        wirefence_place := 1;
    ELSIF $3 THEN
        SELECT min(p.wirefence_at) INTO wirefence_place
        FROM unnest(%2$s, $2) WITH ORDINALITY AS p(%3$s, wirefence_claim, wirefence_at)
        WHERE NOT EXISTS (SELECT FROM %4$s AS t WHERE %5$s AND %6$s = p.wirefence_claim AND %7$s FOR SHARE);
    ELSE
        SELECT min(p.wirefence_at) INTO wirefence_place
        FROM unnest(%2$s, $2) WITH ORDINALITY AS p(%3$s, wirefence_claim, wirefence_at)
        WHERE NOT EXISTS (SELECT FROM %4$s AS t WHERE %5$s AND %6$s = p.wirefence_claim AND %7$s);
    END IF;
    IF wirefence_place IS NULL THEN
        IF $3 THEN
            wirefence_in_subtransaction := EXISTS (
                SELECT FROM unnest(%2$s) AS p(%3$s) JOIN %4$s AS t ON %5$s WHERE t.xmax <> pg_current_xact_id()::xid);
        END IF;
        RETURN;
    END IF;
    IF $3 AND $4 THEN
        PERFORM FROM unnest(%2$s) WITH ORDINALITY AS p(%3$s, wirefence_at), %4$s AS t
        WHERE p.wirefence_at = wirefence_place AND %5$s FOR SHARE OF t;
    END IF;
    SELECT CASE WHEN NOT %7$s THEN 'it is not running' WHEN %6$s = $2[wirefence_place] THEN '' ELSE 'it is under another claim' END INTO wirefence_reason
    FROM unnest(%2$s) WITH ORDINALITY AS p(%3$s, wirefence_at), %4$s AS t
    WHERE p.wirefence_at = wirefence_place AND %5$s;
    wirefence_reason := coalesce(wirefence_reason, 'it has gone');
END
$judge$ $function$,
        wirefence.judge_name(target, class),
        (SELECT string_agg(format('$1[%s * wirefence_count + 1:%s * wirefence_count]%s', k.place - 1, k.place,
            CASE k.kind WHEN 'integer' THEN '::bigint[]' WHEN 'uuid' THEN '::uuid[]' ELSE '' END), ', ' ORDER BY k.place) FROM unnest(kinds) WITH ORDINALITY AS k(kind, place)),
        (SELECT string_agg('wirefence_key' || k.place, ', ' ORDER BY k.place) FROM unnest(key) WITH ORDINALITY AS k(name, place)),
        (SELECT CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || target::text FROM pg_class AS c WHERE c.oid = target),
        (SELECT string_agg(format('t.%I = p.wirefence_key%s', k.name, k.place), ' AND ' ORDER BY k.place) FROM unnest(key) WITH ORDINALITY AS k(name, place)),
        claim, condition,
        (SELECT string_agg(format('t.%I = $1[%s]%s', k.name, k.place, CASE kinds[k.place] WHEN 'integer' THEN '::bigint' WHEN 'uuid' THEN '::uuid' ELSE '' END), ' AND ' ORDER BY k.place)
         FROM unnest(key) WITH ORDINALITY AS k(name, place)))
$$;

-- attribute_numbers returns the numbers of columns.
CREATE FUNCTION wirefence.attribute_numbers(target regclass, columns text[]) RETURNS smallint[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(a.attnum ORDER BY c.place) FROM unnest(columns) WITH ORDINALITY AS c(name, place)
    JOIN pg_attribute AS a ON a.attrelid = target AND a.attname = c.name AND a.attnum > 0
$$;

-- key_kinds returns the kind of each column of a key. It raises an error if the table or its
-- key can't be a class's.
CREATE FUNCTION wirefence.key_kinds(target regclass, key text[], caller name) RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    judged record;
    col record;
    kinds text[];
BEGIN
    SELECT c.*, pg_get_userbyid(c.relowner) AS owner INTO judged FROM pg_class AS c WHERE c.oid = target;
    IF NOT FOUND THEN
        RAISE undefined_table USING MESSAGE = coalesce('table with OID ' || target::oid || ' does not exist', 'the table of the rows is null');
    ELSIF NOT pg_has_role(caller, judged.relowner, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'only the owner of table ' || target::text || ' may declare its rows',
            HINT = format('Connect as %I, or GRANT %I TO %I.', judged.owner, judged.owner, caller);
    ELSIF judged.relkind NOT IN ('r', 'p') OR judged.relpersistence = 't' THEN
        RAISE wrong_object_type USING MESSAGE = target::text || ' is not a permanent table',
            DETAIL = 'Rows of views, foreign tables and temporary tables cannot judge claims.';
    ELSIF judged.relkind = 'r' AND NOT judged.relispartition AND EXISTS (SELECT FROM pg_inherits AS i WHERE target IN (i.inhrelid, i.inhparent)) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is part of an inheritance tree',
            DETAIL = 'No unique index covers such a tree, so two rows could have one key.', HINT = 'Use a partitioned table.';
    ELSIF wirefence.is_distributed(target) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' is managed by Citus',
            DETAIL = 'Its rows are on other nodes, where the lock of a row may end before the transaction.', HINT = 'Use a resource: its token is checked at the coordinator.';
    ELSIF judged.relforcerowsecurity THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' has FORCE ROW LEVEL SECURITY',
            DETAIL = 'Its policies could hide a row from the check, which runs with the rights of the owner.', HINT = format('ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', target);
    ELSIF EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = target AND a.attnum > 0 AND starts_with(a.attname, 'wirefence_')) THEN
        RAISE wrong_object_type USING MESSAGE = 'table ' || target::text || ' has a column whose name begins with wirefence_', HINT = 'Rename the column.';
    ELSIF coalesce(cardinality(key), 0) = 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the key names no column';
    END IF;
    FOR col IN
        SELECT k.name, a.atttypid, a.attnotnull, t.typname, coalesce(o.collisdeterministic, true) AS deterministic, count(*) OVER (PARTITION BY k.name) AS named
        FROM unnest(key) WITH ORDINALITY AS k(name, place)
        LEFT JOIN pg_attribute AS a ON a.attrelid = target AND a.attname = k.name AND a.attnum > 0
        LEFT JOIN pg_type AS t ON t.oid = a.atttypid LEFT JOIN pg_collation AS o ON o.oid = a.attcollation
        ORDER BY k.place
    LOOP
        IF col.atttypid IS NULL THEN
            RAISE undefined_column USING MESSAGE = 'the key names column ' || coalesce(wirefence.quote_name(col.name), 'null') || ', which table ' || target::text || ' does not have';
        ELSIF col.named > 1 THEN
            RAISE duplicate_column USING MESSAGE = 'the key names column ' || wirefence.quote_name(col.name) || ' twice';
        ELSIF NOT col.attnotnull THEN
            RAISE invalid_parameter_value USING MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' of the key may be null',
                HINT = format('ALTER TABLE %s ALTER COLUMN %I SET NOT NULL', target, col.name);
        END IF;
        kinds := kinds || CASE WHEN col.atttypid IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN 'integer'
            WHEN col.atttypid = 'uuid'::regtype THEN 'uuid' WHEN col.atttypid IN ('text'::regtype, 'varchar'::regtype) AND col.deterministic THEN 'text' END;
        IF kinds[cardinality(kinds)] IS NULL THEN
            RAISE datatype_mismatch USING MESSAGE = 'column ' || wirefence.quote_name(col.name) || ' of the key is of type ' || col.atttypid::regtype
                    || CASE WHEN col.deterministic THEN '' ELSE ' with a nondeterministic collation' END,
                DETAIL = 'Equal values of it may have different texts.', HINT = 'A key has columns of integer types, uuid, text or varchar.';
        END IF;
    END LOOP;
    IF wirefence.row_shape(target, wirefence.attribute_numbers(target, key), cardinality(key)) NOT LIKE '%}t' THEN
        RAISE invalid_parameter_value USING
            MESSAGE = 'table ' || target::text || ' has no unique index on exactly ' || array_to_string(key, ', '),
            DETAIL = 'It must be valid, not DEFERRABLE, and without a condition or expressions: otherwise two rows could have one key.';
    END IF;
    RETURN kinds;
END
$$;

-- is_claim and is_condition give an expression the type that it must have, so that PostgreSQL
-- says which one it has.
CREATE FUNCTION wirefence.is_claim(claim bigint) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;
CREATE FUNCTION wirefence.is_condition(condition boolean) RETURNS boolean LANGUAGE sql IMMUTABLE RETURN true;

-- parse_rows returns a claim or a condition as PostgreSQL prints it, and the columns that it
-- names. It reads it as the CHECK constraint of an empty copy of the table: such a constraint
-- cannot look at other rows, which a check would see as of an older snapshot.
CREATE FUNCTION wirefence.parse_rows(copy text, what text, INOUT expression text, OUT columns text[])
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted CONSTANT text := CASE what WHEN 'claim' THEN 'is_claim' ELSE 'is_condition' END;
    given CONSTANT text := expression;
    parsed record;
    culprit text;
BEGIN
    BEGIN
        EXECUTE format(E'ALTER TABLE %s ADD CONSTRAINT %I CHECK (wirefence.%I(%s\n))', copy, wanted, wanted, given);
    EXCEPTION WHEN OTHERS THEN
        RAISE EXCEPTION USING ERRCODE = SQLSTATE,
            MESSAGE = CASE WHEN SQLSTATE = '42883' AND SQLERRM LIKE 'function wirefence.%'
                THEN 'the ' || what || ' is of the wrong type: ' || SQLERRM ELSE 'the ' || what || ' cannot be used: ' || SQLERRM END,
            DETAIL = 'It is ' || coalesce(quote_literal(given), 'null') || '.',
            HINT = CASE what WHEN 'claim' THEN 'A claim is an expression of type bigint over the row''s columns: cast it with ::bigint, and qualify the names of types with their schema.'
                ELSE 'The condition is a boolean expression over the row''s columns. Qualify the names of types with their schema.' END;
    END;
    SELECT pg_get_expr(c.conbin, c.conrelid) AS printed, c.conbin::text AS tree, c.oid INTO parsed
    FROM pg_constraint AS c WHERE c.conrelid = copy::regclass AND c.conname = wanted;
    expression := substring(parsed.printed FROM '^wirefence[.]' || wanted || '[(](.*)[)]$');
    columns := ARRAY(SELECT a.attname FROM pg_depend AS d JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
                     WHERE d.classid = 'pg_constraint'::regclass AND d.objid = parsed.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjsubid > 0);
    SELECT p.oid::regprocedure::text INTO culprit
    FROM regexp_matches(parsed.tree, ':(?:funcid|opfuncid|hashfuncid|negfuncid) ([0-9]+)', 'g') AS m JOIN pg_proc AS p ON p.oid = m[1]::oid
    WHERE p.oid >= 16384 AND p.oid <> format('wirefence.%I', wanted)::regproc OR p.provolatile = 'v' OR p.proname LIKE '%to\_xml%' OR p.proname = 'current_setting';
    culprit := coalesce(culprit, substring(parsed.tree FROM '{(COERCETODOMAIN|ROWCOMPAREEXPR) '));
    IF expression IS NULL OR position('::regclass' IN parsed.tree) > 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' is not one expression', DETAIL = 'It is ' || quote_literal(given) || '.';
    ELSIF culprit IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' uses ' || culprit,
            DETAIL = 'It may use the columns of the row and built-in functions that depend on nothing else: what another row or a function reads may be older than the lock.';
    ELSIF columns = '{}' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the ' || what || ' names no column of the table', DETAIL = 'It is ' || quote_literal(given) || '.';
    END IF;
END
$$;

-- record_rows records a class, whose judge exists.
CREATE FUNCTION wirefence.record_rows(declared jsonb) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wanted wirefence.row_classes := jsonb_populate_record(NULL::wirefence.row_classes, declared);
BEGIN
    PERFORM wirefence.require_owner(wanted.relation);
    IF wirefence.citus_group() IS NOT NULL THEN -- what wirefence_owner does on other nodes can't be undone here
        RAISE feature_not_supported USING MESSAGE = 'rows cannot judge where each node of Citus has the tokens';
    END IF;
    wanted.name := wanted.relation::text;
    wanted.shape := wirefence.row_shape(wanted.relation, wanted.attributes, cardinality(wanted.key));
    IF wirefence.judge_version(to_regprocedure(wanted.judge), wanted.relation) IS NULL OR wanted.judge <> wirefence.judge_name(wanted.relation, wanted.class) || '(text[],bigint[],boolean,boolean)' THEN
        RAISE insufficient_privilege USING MESSAGE = 'class ' || wirefence.quote_name(wanted.class) || ' has no judge', HINT = 'Call wirefence.declare_rows.';
    END IF;
    INSERT INTO wirefence.row_classes AS r (class, relation, name, judge, key, kinds, claim, condition, mode, attributes, shape, declared_by)
    VALUES (wanted.class, wanted.relation, wanted.name, wanted.judge, wanted.key, wanted.kinds, wanted.claim, wanted.condition, wanted.mode, wanted.attributes,
            wanted.shape, session_user)
    ON CONFLICT (class) DO UPDATE SET (key, kinds, claim, condition, mode, attributes, shape, declared_by, declared_at)
        = (excluded.key, excluded.kinds, excluded.claim, excluded.condition, excluded.mode, excluded.attributes, excluded.shape, excluded.declared_by, excluded.declared_at)
    WHERE r.relation = excluded.relation AND r.judge = excluded.judge;
    IF NOT FOUND THEN
        RAISE duplicate_object USING
            MESSAGE = 'class ' || wirefence.quote_name(wanted.class) || ' is already declared for table ' || (SELECT r.name FROM wirefence.row_classes AS r WHERE r.class = wanted.class),
            HINT = format('Run SELECT wirefence.drop_rows(%L) first.', wanted.class);
    END IF;
END
$$;

-- declare_rows makes the rows of a table judges of their own claims: a fence class(key)=claim
-- is valid while the row with this key has this claim and meets the condition. Called again it
-- changes the declaration. The caller must own the table: the judge runs with the rights of the
-- owner, and only wirefence_owner may call it.
CREATE FUNCTION wirefence.declare_rows(class text, "table" regclass, key text[], claim text, "while" text, shadow boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kinds CONSTANT text[] := wirefence.key_kinds("table", key, current_user);
    judge text := wirefence.judge_name("table", class);
    copy CONSTANT text := judge || '_copy';
    schema name;
    owner name;
    parsed_claim record;
    parsed_condition record;
    other name;
    propagated text;
BEGIN
    IF class COLLATE "C" !~ '^[a-z_][a-z0-9_]{0,62}$' OR class IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the name of a class must have 1 to 63 bytes of a-z 0-9 _ and not start with a digit';
    END IF;
    SELECT n.nspname, pg_get_userbyid(c.relowner) INTO schema, owner
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = "table";
    IF NOT has_schema_privilege(current_user, schema, 'CREATE') OR NOT has_schema_privilege(owner, schema, 'CREATE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'the judge of the class is a function in schema ' || quote_ident(schema) || ', where the owner of the table may not create one',
            HINT = format('GRANT CREATE ON SCHEMA %I TO %I', schema, owner);
    END IF;
    propagated := wirefence.propagate('off');
    EXECUTE format('CREATE TABLE %s (LIKE %s)', copy, "table");
    parsed_claim := wirefence.parse_rows(copy, 'claim', claim);
    parsed_condition := wirefence.parse_rows(copy, 'condition', "while");
    EXECUTE 'DROP TABLE ' || copy;
    EXECUTE wirefence.judge_source("table", class, key, kinds, parsed_claim.expression, parsed_condition.expression);
    judge := judge || '(text[],bigint[],boolean,boolean)';
    EXECUTE format('ALTER FUNCTION %s OWNER TO %I', judge, owner);
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', judge);
    FOR other IN SELECT pg_get_userbyid(a.grantee) FROM pg_proc AS p, aclexplode(p.proacl) AS a WHERE p.oid = judge::regprocedure AND a.grantee NOT IN (0, p.proowner) LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I', judge, other);
    END LOOP;
    EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO wirefence_owner', judge);
    IF NOT has_schema_privilege('wirefence_owner', schema, 'USAGE') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO wirefence_owner', schema);
    END IF;
    IF NOT has_schema_privilege('wirefence_owner', schema, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = 'wirefence_owner may not call functions in schema ' || quote_ident(schema),
            HINT = format('GRANT USAGE ON SCHEMA %I TO wirefence_owner', schema);
    END IF;
    PERFORM wirefence.record_rows(jsonb_build_object('class', class, 'relation', "table"::oid::text, 'judge', judge, 'key', key, 'kinds', kinds,
        'claim', parsed_claim.expression, 'condition', parsed_condition.expression, 'mode', CASE WHEN shadow THEN 'shadow' ELSE 'enforce' END,
        'attributes', wirefence.attribute_numbers("table", key || ARRAY(
            SELECT u.name FROM unnest(parsed_claim.columns || parsed_condition.columns) AS u(name) EXCEPT SELECT u.name FROM unnest(key) AS u(name)))));
    PERFORM wirefence.propagate(propagated);
END
$$;

-- forget_rows deletes a declaration. The owner of the table may do that; when the table has
-- gone, the role that declared it and issuers.
CREATE FUNCTION wirefence.forget_rows(class text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    declared wirefence.row_classes;
BEGIN
    SELECT * INTO declared FROM wirefence.row_classes AS r WHERE r.class = forget_rows.class;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = 'class ' || coalesce(wirefence.quote_name(class), 'null') || ' is not declared', HINT = 'SELECT * FROM wirefence.rows() lists the classes.';
    ELSIF EXISTS (SELECT FROM pg_class AS c WHERE c.oid = declared.relation) THEN
        PERFORM wirefence.require_owner(declared.relation);
    ELSIF NOT pg_has_role(session_user, 'wirefence_issuer', 'MEMBER')
          AND NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.rolname = declared.declared_by AND pg_has_role(session_user, r.oid, 'MEMBER')) THEN
        RAISE insufficient_privilege USING MESSAGE = 'permission denied to drop class ' || wirefence.quote_name(class),
            HINT = 'Connect as ' || declared.declared_by || ', who declared it, or as a member of wirefence_issuer.';
    END IF;
    DELETE FROM wirefence.row_classes AS r WHERE r.class = forget_rows.class;
END
$$;

-- judge_of returns the judge of a class, null if it has gone.
CREATE FUNCTION wirefence.judge_of(class text) RETURNS regprocedure
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT to_regprocedure(r.judge) FROM wirefence.row_classes AS r WHERE r.class = judge_of.class $$;

-- drop_rows takes a declaration back: fences of the class get WF008 from then on.
CREATE FUNCTION wirefence.drop_rows(class text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    judge CONSTANT regprocedure := wirefence.judge_of(class);
BEGIN
    PERFORM wirefence.forget_rows(class);
    IF judge IS NOT NULL THEN
        EXECUTE 'DROP FUNCTION ' || judge;
    END IF;
END
$$;

-- rows lists the declared classes; fault says why a class refuses all its fences, null if it
-- does not.
CREATE FUNCTION wirefence.rows() RETURNS TABLE (class text, relation text, key text[], claim text, "while" text, mode text, declared_by text, declared_at timestamptz, fault text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT r.class, r.name, r.key, r.claim, r.condition, r.mode, r.declared_by, r.declared_at,
           CASE WHEN c.oid IS NULL THEN 'the table has gone: drop the class, or declare it for the table that took its place'
                WHEN wirefence.judge_version(to_regprocedure(r.judge), r.relation) IS NULL THEN 'its judge has gone, or has another owner than the table: declare it again'
                WHEN wirefence.row_shape(r.relation, r.attributes, cardinality(r.key)) <> r.shape
                THEN 'the table was renamed or got FORCE ROW LEVEL SECURITY, a column that the class uses was altered, or the unique index on its key has gone: mend that, and declare it again' END
    FROM wirefence.row_classes AS r LEFT JOIN pg_class AS c ON c.oid = r.relation
    ORDER BY 1
$$;

GRANT EXECUTE ON FUNCTION wirefence.declare_rows(text, regclass, text[], text, text, boolean), wirefence.drop_rows(text), wirefence.key_kinds(regclass, text[], name),
    wirefence.judge_name(regclass, text), wirefence.judge_source(regclass, text, text[], text[], text, text), wirefence.attribute_numbers(regclass, text[]),
    wirefence.parse_rows(text, text, text),
    wirefence.is_claim(bigint), wirefence.is_condition(boolean), wirefence.record_rows(jsonb), wirefence.forget_rows(text), wirefence.judge_of(text),
    wirefence.encode_key(text) TO PUBLIC;
GRANT EXECUTE ON FUNCTION wirefence.rows() TO wirefence_issuer;

COMMENT ON FUNCTION wirefence.declare_rows(text, regclass, text[], text, text, boolean) IS 'Makes the rows of a table judges of their own claims: a fence class(key)=claim is valid while the row with this key has this claim and meets the condition. claim is an expression of type bigint over the columns of the row, while a condition on them. With shadow, the class refuses nothing and records in the history what it would refuse. The caller must own the table.';
COMMENT ON FUNCTION wirefence.drop_rows(text) IS 'Takes the declaration of a class back. Its fences are refused with WF008 from then on.';
COMMENT ON FUNCTION wirefence.rows() IS 'Returns the declared classes of rows. fault says why a class refuses all its fences, null if it does not.';
