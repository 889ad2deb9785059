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

-- row_classes has the declared classes. Their tables are known by name, as judges find them.
CREATE TABLE wirefence.row_classes (
    class       text COLLATE "C" PRIMARY KEY,
    name        text NOT NULL,
    key         text[] NOT NULL,
    kinds       text[] NOT NULL,
    claim       text NOT NULL,
    condition   text NOT NULL,
    until       text,
    mode        text COLLATE "C" NOT NULL CHECK (mode IN ('enforce', 'shadow')),
    columns     text[] NOT NULL,
    shape       text NOT NULL,
    declared_by text NOT NULL,
    declared_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE wirefence.row_classes IS 'The classes of rows that judge their own claims. wirefence.rows() compares them with their tables.';
COMMENT ON COLUMN wirefence.row_classes.kinds IS 'For each column of the key, how a fence spells it: integer, uuid or text.';
COMMENT ON COLUMN wirefence.row_classes.until IS 'When a claim ends, in UTC; null for a class that is not followed.';
COMMENT ON COLUMN wirefence.row_classes.columns IS 'The columns of the key, and those that the expressions name.';
COMMENT ON COLUMN wirefence.row_classes.shape IS 'What row_shape returned when the class was declared.';

GRANT SELECT ON wirefence.row_classes TO wirefence_issuer;

-- row_function returns the name of a function of a class: of its judge, or of its claim. No
-- class has a capital letter.
CREATE FUNCTION wirefence.row_function(class text, kind text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN 'row_' || kind || '_' || CASE WHEN length(class) > 40 THEN 'L' || md5(class) ELSE class END;

-- row_shape returns what a class relies on: the sort of its table, the columns, and that a
-- unique index makes the key that of one row. A restore changes the numbers of all but built-in
-- types, which are below 16384.
CREATE FUNCTION wirefence.row_shape(target regclass, key text[], columns text[]) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT concat(c.relkind, (
        SELECT string_agg(concat_ws(' ', '', a.attname, CASE WHEN t.oid < 16384 THEN t.oid::text ELSE t.typtype::text END, a.attnotnull AND a.attname = ANY (key)), '' ORDER BY a.attname)
        FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid WHERE a.attrelid = target AND a.attname = ANY (columns)
    ), CASE WHEN EXISTS (
        SELECT FROM pg_index AS i
        WHERE i.indrelid = target AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL AND i.indnkeyatts = cardinality(key)
          AND cardinality(key) = (SELECT count(*) FROM pg_attribute AS a
                                  WHERE a.attrelid = target AND a.attname = ANY (key) AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1]))) THEN ' unique' END)
    FROM pg_class AS c WHERE c.oid = target
$$;

-- row_table returns the table of a class by its name, whatever rights wirefence_owner has on its
-- schema.
CREATE FUNCTION wirefence.row_table(name text) RETURNS regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE ARRAY[n.nspname, c.relname]::text[] = parse_ident(name) AND c.relname = (parse_ident(name))[2]
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

-- split_rows separates the pairs of rows from the rest of a fence, which is null if there is
-- none. One expression for the whole text costs a tenth of one for each pair.
CREATE FUNCTION wirefence.split_rows(fence text, OUT rest text, OUT pairs text, OUT names text[], OUT claims bigint[])
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    form CONSTANT text := '[a-z_][a-z0-9_]*[(]([A-Za-z0-9_./-]|%[0-9A-F][0-9A-F])+(:([A-Za-z0-9_./-]|%[0-9A-F][0-9A-F])+)*[)]=(0|-?[1-9][0-9]*)';
    wrong text;
BEGIN
    pairs := fence;
    IF octet_length(fence) > 1048576 THEN
        PERFORM wirefence.refuse_malformed('it has ' || octet_length(fence) || ' bytes, at most 1048576 are allowed');
    ELSIF fence COLLATE "C" !~ ('^' || form || '(,' || form || ')*$') THEN
        SELECT string_agg(i.item, ',') FILTER (WHERE strpos(i.item, '(') = 0), string_agg(i.item, ',') FILTER (WHERE strpos(i.item, '(') > 0)
        INTO rest, pairs FROM string_to_table(fence, ',') AS i(item);
        IF pairs COLLATE "C" !~ ('^' || form || '(,' || form || ')*$') THEN
            PERFORM wirefence.refuse_malformed('a pair of a row is not of the form class(key)=claim');
        END IF;
    END IF;
    wrong := CASE
        WHEN pairs ~ '%(00|2[DEF]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9A])' THEN 'a row''s key is not percent-encoded as it should be'
        WHEN pairs ~ '=-?[0-9]{19}' AND EXISTS (SELECT FROM string_to_table(pairs, ',') AS i(item) WHERE split_part(i.item, '=', 2)::numeric
            NOT BETWEEN -9223372036854775808 AND 9223372036854775807) THEN 'a claim is not a decimal number of 64 bits'
        WHEN length(pairs) > 64 AND EXISTS (SELECT FROM string_to_table(pairs, ',') AS i(item) WHERE strpos(i.item, '(') > 64) THEN 'the name of a class of rows has more than 63 bytes'
        WHEN length(pairs) > 1024 AND EXISTS (SELECT FROM string_to_table(pairs, ',') AS i(item) WHERE strpos(i.item, ')') - strpos(i.item, '(') > 1025)
            THEN 'the key of a row has more than 1024 bytes' END;
    IF wrong IS NULL AND pairs ~ '%[89A-F]' THEN
        PERFORM wirefence.decode_text(m.part[1], 'the key of a row') FROM regexp_matches(pairs, '[(:]([^:)]*%[89A-F][^:)]*)', 'g') AS m(part);
    END IF;
    IF wrong IS NULL THEN
        SELECT array_agg(p.name), array_agg(p.claim), CASE WHEN count(DISTINCT p.name) < count(*) THEN 'a row has two claims'
                                                           WHEN count(*) > 10000 THEN 'it names ' || count(*) || ' rows, at most 10000 are allowed' END
        INTO names, claims, wrong
        FROM (SELECT DISTINCT split_part(i.item, '=', 1) COLLATE "C" AS name, split_part(i.item, '=', 2)::bigint AS claim FROM string_to_table(pairs, ',') AS i(item) ORDER BY 1, 2) AS p;
    END IF;
    IF wrong IS NOT NULL THEN
        PERFORM wirefence.refuse_malformed(wrong);
    END IF;
END
$$;

-- read_rows reads the pairs of rows in a fence, and the rest. It returns the pairs class by
-- class, without those for which the transaction was checked already, and one row without a
-- class if none is left. pairs is their text in the order of the fence.
CREATE FUNCTION wirefence.read_rows(fence text) RETURNS TABLE (rest text, pairs text, class text, enforced boolean, names text[], keys text[], claims bigint[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known CONSTANT text := coalesce(current_setting('wirefence.checked', true), '');
    split CONSTANT record := wirefence.split_rows(fence);
    kinds text[];
    part record;
BEGIN
    rest := split.rest;
    pairs := split.pairs;
    FOR part IN
        SELECT split_part(u.name, '(', 1) COLLATE "C" AS class, array_agg(u.name ORDER BY u.at) AS names, array_agg(u.claim ORDER BY u.at) AS claims,
               string_agg(rtrim(split_part(u.name, '(', 2), ')'), ',' ORDER BY u.at) AS keys
        FROM unnest(split.names, split.claims) WITH ORDINALITY AS u(name, claim, at)
        WHERE known = '' OR concat(u.name, '=', u.claim) NOT IN (SELECT s.pair FROM string_to_table(known, ',') AS s(pair))
        GROUP BY 1 ORDER BY 1
    LOOP
        class := part.class; names := part.names; claims := part.claims; keys := string_to_array(part.keys, ',');
        SELECT r.kinds, r.mode = 'enforce' INTO kinds, enforced FROM wirefence.row_classes AS r WHERE r.class = part.class;
        IF NOT FOUND THEN
            PERFORM wirefence.refuse_rows('WF008', names[1], NULL, 'the class was not declared');
        ELSIF part.keys COLLATE "C" !~ ('^' || wirefence.key_form(kinds, false) || '(,' || wirefence.key_form(kinds, false) || ')*$')
              OR 'integer' = ANY (kinds) AND part.keys ~ '[0-9]{19}' AND EXISTS (
                  SELECT FROM unnest(keys) AS u(key), unnest(string_to_array(u.key, ':'), kinds) AS p(part, kind)
                  WHERE p.kind = 'integer' AND length(p.part) > 18 AND p.part::numeric NOT BETWEEN -9223372036854775808 AND 9223372036854775807) THEN
            PERFORM wirefence.refuse_malformed('a key of class ' || class || ' is not of the form ' || array_to_string(kinds, ':'));
        END IF;
        RETURN NEXT;
    END LOOP;
    IF class IS NULL THEN
        RETURN NEXT;
    END IF;
END
$$;

-- refuse_rows raises WF001 for a row, whose reason the judge gave, or WF006 or WF008. It does not
-- tell the present claim: with that a late worker could go on. For a class in shadow mode it
-- returns the refusal as check does, and notes it.
CREATE FUNCTION wirefence.refuse_rows(state text, name text, claim bigint, reason text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    named CONSTANT text := split_part(name, '(', 1);
    message CONSTANT text := CASE state WHEN 'WF001' THEN 'stale claim for row ' || name
        WHEN 'WF008' THEN 'unknown class of rows ' || wirefence.quote_name(named)
        ELSE 'cannot judge row ' || name || ' in a READ ONLY transaction with a snapshot' END;
    detail CONSTANT text := 'Row ' || name || ': ' || CASE state WHEN 'WF001' THEN 'presented claim ' || claim || ', but ' ELSE '' END || reason || '.';
BEGIN
    IF EXISTS (SELECT FROM wirefence.row_classes AS r WHERE r.class = named AND r.mode = 'shadow') THEN
        PERFORM wirefence.note('shadow', state, named || '()', NULL, NULL, NULL, NULL, NULL);
        RETURN state || ': ' || message || '. ' || detail;
    END IF;
    RAISE EXCEPTION USING
        SCHEMA = wirefence.count_refusal(state, named || '()'),
        ERRCODE = CASE state WHEN 'WF001' THEN 'WF001' WHEN 'WF008' THEN 'WF008' ELSE 'WF006' END,
        MESSAGE = message,
        DETAIL = detail,
        HINT = CASE state WHEN 'WF001' THEN 'Stop this work: it was taken by another worker, ended, or cancelled. A retry with the same claim can never succeed.'
            WHEN 'WF008' THEN 'The owner of the table declares its rows: wirefence rows declare ' || named || ' --table TABLE --key COLUMN --claim EXPRESSION --while CONDITION'
            ELSE 'Use READ COMMITTED, or READ WRITE.' END;
END
$$;

-- judge_rows checks a fence that names rows, with the rights of the caller. It locks the rows
-- unless the transaction is READ ONLY, or shadow or their class is. What it has locked stays good
-- until the transaction ends, whatever that itself does to the rows: it may complete or delete
-- the job, and go on. ROLLBACK TO takes back both the locks and the note.
CREATE FUNCTION wirefence.judge_rows(fence text, default_resource text, required boolean, shadow boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    snapshot CONSTANT boolean := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    writable CONSTANT boolean := current_setting('transaction_read_only') = 'off';
    part record;
    first_refusal text;
    verdict text;
    place integer;
    reason text;
    added text;
BEGIN
    FOR part IN SELECT r.*, wirefence.row_function(r.class, 'judge') AS judge FROM wirefence.read_rows(fence) WITH ORDINALITY AS r LOOP
        IF part.ordinality = 1 AND part.rest IS NOT NULL THEN
            first_refusal := wirefence.check_tokens(part.rest, default_resource, required::text, shadow::text);
        END IF;
        EXIT WHEN part.class IS NULL OR shadow AND first_refusal IS NOT NULL;
        place := 1;
        IF snapshot AND NOT writable THEN
            first_refusal := coalesce(first_refusal, wirefence.refuse_rows('WF006', part.names[1], NULL,
                'the snapshot may be older than a take of the row, which can be told only by locking it'));
            CONTINUE;
        ELSIF to_regproc(format('wirefence.%I', part.judge)) IS NULL THEN
            verdict := '0 the judge of its class has gone';
        ELSE
            EXECUTE format('SELECT wirefence.%I(NULL, $1, $2, $3, $4)', part.judge) INTO verdict
            USING part.keys, part.claims, writable AND part.enforced AND NOT shadow, snapshot;
        END IF;
        IF verdict IS NULL THEN
            IF writable AND part.enforced AND NOT shadow THEN
                added := concat_ws(',', added, (SELECT string_agg(concat(u.name, '=', u.claim), ',') FROM unnest(part.names, part.claims) AS u(name, claim)));
            END IF;
            CONTINUE;
        END IF;
        place := split_part(verdict, ' ', 1);
        reason := substr(verdict, strpos(verdict, ' ') + 1);
        IF place = 0 THEN
            first_refusal := coalesce(first_refusal, wirefence.refuse_rows('WF008', part.names[1], NULL, reason));
        ELSIF reason = '' OR pg_is_in_recovery() THEN
            RAISE serialization_failure USING
                MESSAGE = 'could not serialize access to a fenced resource',
                DETAIL = 'Row ' || part.names[place] || CASE reason WHEN '' THEN ' was replaced during the check.' ELSE ' on this standby is not under the claim, or not yet.' END,
                HINT = 'Retry the transaction' || CASE reason WHEN '' THEN '.' ELSE ', or run it on the primary.' END;
        ELSE
            first_refusal := coalesce(first_refusal, wirefence.refuse_rows('WF001', part.names[place], part.claims[place], reason));
        END IF;
    END LOOP;
    IF added IS NOT NULL THEN
        -- The text of the fence lets check_rows find the same fence again by one look.
        PERFORM wirefence.note_checked(CASE WHEN length(added) = length(part.pairs) THEN part.pairs ELSE added END);
    END IF;
    RETURN first_refusal;
END
$$;

-- check_in_shadow is check for a proxy in shadow mode, or a guard. It raises nothing.
CREATE FUNCTION wirefence.check_in_shadow(fence text, default_resource text, required boolean) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    carried CONSTANT text := coalesce(fence, wirefence.carried());
    message text;
    detail text;
BEGIN
    PERFORM set_config('wirefence.observing', 'on', true);
    IF strpos(carried, '(') > 0 THEN
        message := wirefence.judge_rows(carried, default_resource, false, true);
    ELSE
        message := wirefence.check_tokens(fence, default_resource, required::text, 'true');
    END IF;
    PERFORM set_config('wirefence.observing', '', true);
    RETURN message;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
    RETURN SQLSTATE || ': ' || message || coalesce('. ' || nullif(detail, ''), '');
END
$$;

-- check_rows is check for a fence that names rows. It decides the frequent cases, a fence of one
-- row, and one that was checked before; judge_rows decides all others.
CREATE FUNCTION wirefence.check_rows(fence text, default_resource text, required boolean) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    carried CONSTANT pg_catalog.text := coalesce(fence, wirefence.carried());
    judge CONSTANT pg_catalog.text := pg_catalog.format('wirefence.%I', wirefence.row_function(pg_catalog.split_part(carried, '(', 1), 'judge'));
    verdict pg_catalog.text;
BEGIN
    IF pg_catalog.strpos(pg_catalog.current_setting('wirefence.checked', true), pg_catalog.concat(',', carried, ',')) OPERATOR(pg_catalog.>) 0 THEN
        RETURN NULL;
    ELSIF pg_catalog.strpos(carried, ',') OPERATOR(pg_catalog.=) 0 AND pg_catalog.current_setting('transaction_read_only') OPERATOR(pg_catalog.=) 'off'
          AND pg_catalog.to_regproc(judge) IS NOT NULL THEN
        EXECUTE pg_catalog.concat('SELECT ', judge, '($1, NULL, NULL, true, false)') INTO verdict USING carried;
        IF verdict IS NULL THEN
            PERFORM wirefence.note_checked(carried);
            RETURN NULL;
        END IF;
    END IF;
    RETURN wirefence.judge_rows(carried, default_resource, required, false);
END
$$;

-- proxy_hold is hold_tokens, which describes it, and checks rows, which are not held, with the
-- rights of the caller.
CREATE FUNCTION wirefence.proxy_hold(number integer, fence text, default_resource text, held text, required boolean, manner text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    held_as pg_catalog.text := wirefence.hold_tokens(number, fence, default_resource, held, manner);
BEGIN
    IF held_as IS NULL THEN
        held_as := wirefence.take_hold(number::pg_catalog.text, fence, default_resource, required::pg_catalog.text, manner);
    END IF;
    IF held_as OPERATOR(pg_catalog.=) 'once' AND manner OPERATOR(pg_catalog.=) 'group'
       AND pg_catalog.strpos(coalesce(fence, wirefence.carried()), '(') OPERATOR(pg_catalog.>) 0 THEN
        RETURN coalesce(wirefence.check_rows(fence, default_resource, required), held_as);
    END IF;
    RETURN held_as;
END
$$;

GRANT EXECUTE ON FUNCTION wirefence.proxy_hold(integer, text, text, text, boolean, text), wirefence.check_rows(text, text, boolean),
    wirefence.judge_rows(text, text, boolean, boolean), wirefence.check_in_shadow(text, text, boolean), wirefence.read_rows(text),
    wirefence.refuse_rows(text, text, bigint, text), wirefence.row_function(text, text), wirefence.encode_key(text) TO PUBLIC;
