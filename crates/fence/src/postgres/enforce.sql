-- Enforcement: triggers that refuse every write to a guarded table unless the transaction carries the
-- current token of the table's scope, whoever issues it. Applied after fence.sql; applying it twice is harmless.

-- Which tables are guarded, and by what. A partition or child is guarded through its root's line. The name is the one at
-- install: applications write to a name, so a table that was swapped under its name is found by comparing the two.
CREATE TABLE IF NOT EXISTS tenure_fence.guarded (
    relation regclass PRIMARY KEY,
    scope    text COLLATE "C" NOT NULL
);
ALTER TABLE tenure_fence.guarded ADD COLUMN IF NOT EXISTS name text;

-- The roles that write to a guarded table, as named at install.
CREATE TABLE IF NOT EXISTS tenure_fence.writers (
    relation regclass NOT NULL,
    role     regrole NOT NULL,
    PRIMARY KEY (relation, role)
);

-- The name of a table with its schema; NULL if the table is gone.
CREATE OR REPLACE FUNCTION tenure_fence.name_of(p_relation regclass) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = p_relation
$$;
UPDATE tenure_fence.guarded SET name = tenure_fence.name_of(relation) WHERE name IS NULL;

-- The check. One function for statements, rows, TRUNCATE and COPY; TG_ARGV[0] is the scope.
CREATE OR REPLACE FUNCTION tenure_fence.guard() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    carried bigint;
    seen    bigint;
BEGIN
    -- The setting alone proves nothing, because anybody can set one; the line in the audit, which only `break_glass`
    -- can write, does. Numbers of transactions come up again in a database that was restored, so the line must also name
    -- the moment at which this one began. It is looked for only where the setting says that there is one, and in a
    -- condition of its own: one with a query in it is run as a query for every row.
    IF current_setting('tenure.glass_broken', true) = TG_ARGV[0] || ' ' || pg_current_xact_id()::text THEN
        IF EXISTS (SELECT 1 FROM tenure_fence.audit a WHERE a.what = 'break glass' AND a.scope = TG_ARGV[0]
                   AND a.detail ->> 'transaction' = pg_current_xact_id()::text
                   AND a.detail ->> 'began' = extract(epoch FROM transaction_timestamp())::text) THEN
            RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
        END IF;
    END IF;
    carried := (nullif(current_setting('tenure.carried', true), '')::jsonb ->> TG_ARGV[0])::bigint;
    IF carried IS NULL THEN
        RAISE EXCEPTION '% on %.% refused: this transaction carries no token for %',
                TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_ARGV[0]
            USING ERRCODE = 'TN002',
                  HINT = format('Begin the transaction with SELECT tenure_fence.enter(%L, <token>).', TG_ARGV[0]);
    END IF;
    SELECT token INTO seen FROM tenure_fence.marks WHERE scope = TG_ARGV[0] FOR SHARE;
    IF seen IS DISTINCT FROM carried THEN
        PERFORM tenure_fence.raise_stale(TG_ARGV[0], carried, seen);
    END IF;
    RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END $$;

-- Everything that a root stands for: itself, its partitions, its children.
CREATE OR REPLACE FUNCTION tenure_fence.family(p_root regclass) RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE family AS (
        SELECT p_root::oid AS oid
        UNION
        SELECT i.inhrelid FROM pg_inherits i JOIN family f ON i.inhparent = f.oid
    )
    SELECT f.oid::regclass FROM family f JOIN pg_class c ON c.oid = f.oid WHERE c.relkind IN ('r', 'p', 'f')
$$;

-- Whether a table has the trigger of this name as `cover` makes it: our function, this scope, every event, no condition,
-- in every replication role. The name alone proves nothing: whoever has the TRIGGER right can take it.
CREATE OR REPLACE FUNCTION tenure_fence.has_trigger(p_relation regclass, p_name text, p_scope text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT 1 FROM pg_trigger t WHERE t.tgrelid = p_relation AND t.tgname = p_name AND t.tgenabled = 'A'
        AND t.tgfoid = 'tenure_fence.guard()'::regprocedure AND t.tgqual IS NULL AND t.tgattr::text = ''
        AND t.tgtype = CASE p_name WHEN 'tenure_fence_row' THEN 31 ELSE 62 END    -- BEFORE, events, ROW or STATEMENT
        AND t.tgnargs = 1 AND t.tgargs = convert_to(p_scope, getdatabaseencoding()) || decode('00', 'hex'))
$$;

-- Puts the triggers on one table where they are missing, and makes them fire in every replication role.
CREATE OR REPLACE FUNCTION tenure_fence.cover(p_relation regclass, p_scope text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    name text;
BEGIN
    -- A trigger here would not bind the server that keeps the rows, and that server does not wait for a barrier.
    IF (SELECT relkind FROM pg_class WHERE oid = p_relation) = 'f' THEN
        RAISE EXCEPTION '% is a foreign table, and another server accepts writes to it past the guard',
                tenure_fence.name_of(p_relation)
            USING ERRCODE = 'TN003', HINT = 'Guard the table on the server that keeps it, and keep it out of a guarded family.';
    END IF;
    -- Rows: this is the tight one, because rows reach a partition through its parent and a child through an
    -- inherited UPDATE without any statement naming it. On a partitioned table the trigger is cloned downwards.
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = p_relation AND tgname = 'tenure_fence_row') THEN
        EXECUTE format('CREATE TRIGGER tenure_fence_row BEFORE INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
            'EXECUTE FUNCTION tenure_fence.guard(%L)', p_relation, p_scope);
    END IF;
    -- Statements: TRUNCATE has no rows, and a write path that happens to hit none should be found all the same.
    IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = p_relation AND tgname = 'tenure_fence_statement') THEN
        EXECUTE format('CREATE TRIGGER tenure_fence_statement BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION tenure_fence.guard(%L)', p_relation, p_scope);
    END IF;
    FOREACH name IN ARRAY ARRAY['tenure_fence_row', 'tenure_fence_statement'] LOOP
        -- Only where it is needed: this is DDL itself, and calls `cover_new`.
        IF EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = p_relation AND tgname = name AND tgenabled <> 'A') THEN
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', p_relation, name);
        END IF;
        IF NOT tenure_fence.has_trigger(p_relation, name, p_scope) THEN
            RAISE EXCEPTION '% has another trigger called %', tenure_fence.name_of(p_relation), name
                USING ERRCODE = 'TN003', HINT = 'Drop it, or remove the guard of the other scope, and install again.';
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION tenure_fence.guard_table(p_root regclass, p_scope text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bound  text;
    member regclass;
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = p_root) NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '% is not a table', p_root
            USING ERRCODE = 'TN003', HINT = 'Guard the tables beneath a view instead.';
    END IF;
    SELECT scope INTO bound FROM tenure_fence.guarded WHERE relation = p_root;
    IF bound <> p_scope THEN
        RAISE EXCEPTION '% is already guarded by %', p_root, bound
            USING ERRCODE = 'TN003', HINT = 'Remove it first; a table belongs to one scope.';
    END IF;
    -- What was dropped under this name is not coming back; this table has taken its place.
    DELETE FROM tenure_fence.guarded g WHERE g.name = tenure_fence.name_of(p_root)
        AND tenure_fence.name_of(g.relation) IS NULL;
    INSERT INTO tenure_fence.guarded (relation, scope, name) VALUES (p_root, p_scope, tenure_fence.name_of(p_root))
        ON CONFLICT (relation) DO UPDATE SET name = excluded.name;
    FOR member IN SELECT tenure_fence.family(p_root) LOOP
        PERFORM tenure_fence.cover(member, p_scope);
    END LOOP;
END $$;

-- How the roles that write to a table could take its guard off: by what they are, by what they own, or by what they may write.
CREATE OR REPLACE FUNCTION tenure_fence.weaknesses(p_root regclass) RETURNS TABLE (member regclass, finding text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH writer AS (
        SELECT r.oid, r.rolname, r.rolsuper FROM tenure_fence.writers w JOIN pg_roles r ON r.oid = w.role
        WHERE w.relation = p_root
    ), owned AS (
        SELECT f.member, tenure_fence.name_of(f.member) AS what, c.relowner AS owner
            FROM tenure_fence.family(p_root) AS f(member) JOIN pg_class c ON c.oid = f.member
        UNION ALL       -- The owner of a schema may drop what is in it.
        SELECT f.member, 'the schema ' || n.nspname, n.nspowner FROM tenure_fence.family(p_root) AS f(member)
            JOIN pg_class c ON c.oid = f.member JOIN pg_namespace n ON n.oid = c.relnamespace
        UNION ALL
        SELECT p_root, 'the schema tenure_fence', n.nspowner FROM pg_namespace n WHERE n.nspname = 'tenure_fence'
        UNION ALL
        SELECT p_root, tenure_fence.name_of(c.oid), c.relowner FROM pg_class c
            WHERE c.relnamespace = 'tenure_fence'::regnamespace AND c.relkind = 'r'
        UNION ALL
        SELECT DISTINCT p_root, 'a function of tenure_fence', p.proowner FROM pg_proc p
            WHERE p.pronamespace = 'tenure_fence'::regnamespace
    )
    SELECT p_root, format('%s is a superuser', w.rolname) FROM writer w WHERE w.rolsuper
    UNION
    SELECT p_root, CASE WHEN r.oid = w.oid THEN format('%s has CREATEROLE', w.rolname)
            ELSE format('%s can act as %s', w.rolname, r.rolname) END
        FROM writer w JOIN pg_roles r ON pg_has_role(w.oid, r.oid, 'MEMBER')
        WHERE NOT w.rolsuper AND (r.rolsuper OR r.rolcreaterole
            OR r.rolname IN ('pg_execute_server_program', 'pg_write_server_files'))
    UNION
    SELECT o.member, format('%s can act as the owner of %s', w.rolname, o.what)
        FROM writer w JOIN owned o ON pg_has_role(w.oid, o.owner, 'MEMBER') WHERE NOT w.rolsuper
    UNION           -- So may a member of pg_write_all_data.
    SELECT p_root, format('%s may write to %s', w.rolname, tenure_fence.name_of(c.oid)) FROM writer w, pg_class c
        WHERE NOT w.rolsuper AND c.relnamespace = 'tenure_fence'::regnamespace AND c.relkind = 'r'
          AND has_table_privilege(w.oid, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER')
$$;

-- Notes who writes to a guarded table, and refuses if that role could take the guard off.
CREATE OR REPLACE FUNCTION tenure_fence.admit(p_root regclass, p_roles text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_weak text;
BEGIN
    INSERT INTO tenure_fence.writers (relation, role)
        SELECT p_root, quote_ident(role)::regrole FROM unnest(p_roles) AS role ON CONFLICT DO NOTHING;
    DELETE FROM tenure_fence.writers w WHERE NOT EXISTS (SELECT 1 FROM pg_roles r WHERE r.oid = w.role);
    SELECT string_agg(DISTINCT finding, '; ') INTO found_weak FROM tenure_fence.weaknesses(p_root);
    IF found_weak IS NOT NULL THEN
        RAISE EXCEPTION 'not guarded, because the application could take the guard off: %', found_weak
            USING ERRCODE = 'TN003',
                  HINT = 'Let another role own the tables, their schema and the fence, and grant this one only the rights it needs.';
    END IF;
END $$;

-- `p_name` finds the line of a table that was dropped.
DROP FUNCTION IF EXISTS tenure_fence.unguard_table(regclass, text);
CREATE OR REPLACE FUNCTION tenure_fence.unguard_table(p_root regclass, p_reason text, p_name text DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was    text;
    member regclass;
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'removing a guard needs a reason' USING ERRCODE = 'TN003';
    END IF;
    DELETE FROM tenure_fence.guarded WHERE relation = p_root RETURNING scope INTO was;
    IF was IS NULL THEN
        DELETE FROM tenure_fence.guarded g WHERE tenure_fence.name_of(g.relation) IS NULL
            AND p_name IN (g.name, split_part(g.name, '.', 2)) RETURNING scope INTO was;
    END IF;
    DELETE FROM tenure_fence.writers w
        WHERE NOT EXISTS (SELECT 1 FROM tenure_fence.guarded g WHERE g.relation = w.relation);
    IF was IS NULL THEN
        RAISE EXCEPTION '% is not guarded', coalesce(tenure_fence.name_of(p_root), p_name)
            USING ERRCODE = 'TN003', HINT = 'Name the table that was named at install, not a partition of it.';
    END IF;
    -- The root first: dropping its row trigger drops the clones on its partitions.
    FOR member IN SELECT tenure_fence.family(p_root) LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS tenure_fence_row ON %s', member);
        EXECUTE format('DROP TRIGGER IF EXISTS tenure_fence_statement ON %s', member);
    END LOOP;
    INSERT INTO tenure_fence.audit (what, scope, reason, detail)
        VALUES ('remove', was, p_reason, jsonb_build_object('table', coalesce(p_root::text, p_name)));
END $$;

-- New partitions and children are covered as they appear.
CREATE OR REPLACE FUNCTION tenure_fence.cover_new() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    line record;
BEGIN
    FOR line IN SELECT f.member, g.scope FROM tenure_fence.guarded g, tenure_fence.family(g.relation) AS f(member)
            WHERE NOT tenure_fence.has_trigger(f.member, 'tenure_fence_row', g.scope)
               OR NOT tenure_fence.has_trigger(f.member, 'tenure_fence_statement', g.scope)
               OR (SELECT relkind FROM pg_class WHERE oid = f.member) = 'f' LOOP
        IF EXISTS (SELECT 1 FROM pg_event_trigger_ddl_commands() d LEFT JOIN pg_inherits i ON i.inhparent = d.objid
                   WHERE line.member IN (d.objid, i.inhrelid)) THEN
            PERFORM tenure_fence.cover(line.member, line.scope);
        ELSE
            -- Mended if that is possible. If not, `status` says so; a command about something else must not fail for it.
            BEGIN
                PERFORM tenure_fence.cover(line.member, line.scope);
            EXCEPTION WHEN SQLSTATE 'TN003' THEN NULL;
            END;
        END IF;
    END LOOP;
END $$;

-- The documented way past the guard, for this transaction alone: waits until no holder is inside, keeps holders
-- out until it ends, and leaves a line in the audit that commits or vanishes together with what was written.
CREATE OR REPLACE FUNCTION tenure_fence.break_glass(p_scope text, p_reason text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'breaking the glass needs a reason' USING ERRCODE = 'TN003';
    END IF;
    PERFORM pg_advisory_xact_lock(tenure_fence.queue_number(p_scope));
    PERFORM 1 FROM tenure_fence.marks WHERE scope = p_scope FOR UPDATE;
    INSERT INTO tenure_fence.audit (what, scope, reason, detail) VALUES ('break glass', p_scope, p_reason,
        jsonb_build_object('transaction', pg_current_xact_id()::text,
                           'began', extract(epoch FROM transaction_timestamp())::text));
    PERFORM set_config('tenure.glass_broken', p_scope || ' ' || pg_current_xact_id()::text, true);
END $$;

-- One line per guarded table and member of its family, with what is wrong with it, if anything is.
CREATE OR REPLACE FUNCTION tenure_fence.status()
RETURNS TABLE (root text, member text, scope text, token bigint, holder text, problem text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(tenure_fence.name_of(g.relation), g.name, g.relation::text) AS root,
           coalesce(tenure_fence.name_of(f.member), g.name, g.relation::text), g.scope, m.token, m.holder,
           nullif(concat_ws('; ',
               CASE WHEN m.token IS NULL THEN 'no token has been installed yet: every write is refused' END,
               CASE WHEN f.member IS NULL THEN 'the table was dropped'
                    WHEN f.member = g.relation AND g.name <> tenure_fence.name_of(g.relation)
                    THEN format('it was called %s at install', g.name) END,
               CASE WHEN coalesce(f.member, g.relation) = g.relation AND to_regclass(g.name) <> g.relation
                    AND NOT EXISTS (SELECT 1 FROM tenure_fence.guarded o WHERE o.relation = to_regclass(g.name))
                    THEN format('another relation is called %s now and is not guarded', g.name) END,
               CASE WHEN c.relkind = 'f' THEN 'it is a foreign table: the server that keeps it accepts writes past the guard' END,
               CASE WHEN c.relkind <> 'f' AND NOT tenure_fence.has_trigger(f.member, 'tenure_fence_row', g.scope)
                    THEN 'rows are not guarded' END,
               CASE WHEN c.relkind <> 'f' AND NOT tenure_fence.has_trigger(f.member, 'tenure_fence_statement', g.scope)
                    THEN 'TRUNCATE is not guarded' END,
               (SELECT 'the application could take the guard off: ' || string_agg(w.finding, '; ' ORDER BY w.finding)
                    FROM tenure_fence.weaknesses(g.relation) w WHERE w.member = f.member)), '')
    FROM tenure_fence.guarded g
    LEFT JOIN LATERAL tenure_fence.family(g.relation) AS f(member) ON true
    LEFT JOIN pg_class c ON c.oid = f.member
    LEFT JOIN tenure_fence.marks m ON m.scope = g.scope
    ORDER BY 1, 2
$$;

REVOKE ALL ON ALL TABLES IN SCHEMA tenure_fence FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure_fence FROM PUBLIC;
-- A trigger is cloned onto a new partition with the rights of whoever creates it, so the owner of a guarded table needs this one.
-- Others cannot use it: to name it they would need the right to use the schema.
GRANT EXECUTE ON FUNCTION tenure_fence.guard() TO PUBLIC;
