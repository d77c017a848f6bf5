-- Who may call what. The functions run with the rights of the owner of the schema, and look names up in this schema
-- alone. Only three roles may call them, which are named after the schema: `_push` pushes and reads a job, `_work`
-- claims and ends jobs, `_operate` does all. Make other roles their members:
-- GRANT waterline_work TO my_service.

-- Makes the roles, if the caller may, and gives them their rights. The owner calls it again if another user makes them.
CREATE OR REPLACE FUNCTION grant_roles() RETURNS void LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $grants$
DECLARE
    f record;
    v_schema text := current_schema();
    v_push text[] := '{push,push_many,push_plain,push_jobs,push_and_commit,push_across,push_across_and_commit,push_plain_and_commit,begin_anew,get,counts,listen_to,listen,states_of,schema_version}';
    v_work text[] := '{claim,load,work,turn,turn_and_commit,finish,fail,snooze,renew,note_stop,edit,change_note,put_note,change_note_and_commit,notes_of,peek_now,waits_since,who_runs,set_average,tick_once,end_in,ended_by}';
    v_operate text[] := '{queues,create_queue,remove_queue,set_options,steer,list,status_inputs,limits_used,workers_of,related_to,register_periodic,periodics_of,averages_of}';
    v_role text;
    -- A name has 63 bytes at most.
    v_prefix text := CASE WHEN octet_length(v_schema) <= 54 THEN v_schema ELSE left(v_schema, 12) || md5(v_schema) END;
BEGIN
    FOREACH v_role IN ARRAY '{push,work,operate}'::text[] LOOP
        v_role := v_prefix || '_' || v_role;
        -- A snapshot may show a role that another session has just made before the cache knows it, which GRANT asks.
        IF to_regrole(quote_ident(v_role)) IS NULL
            AND (SELECT rolcreaterole OR rolsuper FROM pg_roles WHERE rolname = current_user) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', v_role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                -- Roles belong to all databases: another session is just making it.
                NULL;
            END;
        END IF;
        IF to_regrole(quote_ident(v_role)) IS NOT NULL THEN
            EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', v_schema, v_role);
            -- A program asks for the version before it migrates.
            EXECUTE format('GRANT SELECT ON version TO %I', v_role);
        ELSE
            RAISE WARNING 'waterline: there is no role "%", and this user may make none, so nobody but the owner may call the functions', v_role
                USING HINT = format('Let somebody make it, and call %I.grant_roles() as the owner of the schema.', v_schema);
        END IF;
    END LOOP;
    FOR f IN SELECT p.oid::regprocedure AS name, p.proname, p.prokind FROM pg_proc p WHERE p.pronamespace = quote_ident(v_schema)::regnamespace LOOP
        EXECUTE format('REVOKE ALL ON ROUTINE %s FROM PUBLIC', f.name);
        IF f.proname = ANY (v_push || v_work || v_operate) THEN
            -- Without these settings, each call would be planned anew, or by what the queue was like when it was
            -- empty. A plan without sequential scans looks so expensive that it would be compiled each time. A
            -- procedure that commits can have no such settings, nor the rights of the owner: it calls a function.
            IF f.prokind = 'f' THEN
                EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = %I, pg_temp SET plan_cache_mode = force_generic_plan '
                    'SET enable_seqscan = off SET jit = off', f.name, v_schema);
            END IF;
            FOREACH v_role IN ARRAY '{push,work,operate}'::text[] LOOP
                CONTINUE WHEN NOT (v_role = 'operate' OR f.proname = ANY (v_push)
                    OR v_role = 'work' AND f.proname = ANY (v_work));
                v_role := v_prefix || '_' || v_role;
                IF to_regrole(quote_ident(v_role)) IS NOT NULL THEN
                    EXECUTE format('GRANT EXECUTE ON ROUTINE %s TO %I', f.name, v_role);
                END IF;
            END LOOP;
        END IF;
    END LOOP;
END $grants$;

SELECT grant_roles();
RESET search_path;
